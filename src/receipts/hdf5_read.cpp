// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include <fmt/format.h>

#include "base/files.hpp"
#include "base/json.hpp"
#include "base/sha256.hpp"
#include "receipts/hdf5_api.hpp"
#include "receipts/hdf5_format.hpp"
#include "receipts/hdf5_store.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

using h5::Context;
using h5::Handle;

std::vector<h5::FileEntry> read_index(const Context& context, hid_t root) {
  const Handle index = h5::open_dataset(context, root, "files/index");
  const std::size_t rows = h5::length_of(context, index, "files/index");
  std::vector<h5::FileEntry> entries(rows);
  const auto texts = [&](const char* column, auto member) {
    const auto values = h5::text_column(context, index, column);
    for (std::size_t i = 0; i < rows; ++i) entries[i].*member = values.at(i);
  };
  const auto integers = [&](const char* column, auto member) {
    const auto values = h5::integer_column(context, index, column);
    for (std::size_t i = 0; i < rows; ++i) entries[i].*member = values.at(i);
  };
  if (rows == 0) return entries;
  texts("kind", &h5::FileEntry::kind);
  texts("path", &h5::FileEntry::path);
  texts("sha256", &h5::FileEntry::sha256);
  texts("key", &h5::FileEntry::key);
  texts("series", &h5::FileEntry::series);
  integers("seq", &h5::FileEntry::seq);
  integers("offset", &h5::FileEntry::offset);
  integers("bytes", &h5::FileEntry::bytes);
  return entries;
}

std::string read_data(const Context& context, hid_t root) {
  const Handle data = h5::open_dataset(context, root, "files/data");
  std::string text(h5::length_of(context, data, "files/data"), '\0');
  if (!text.empty()) {
    context.check(H5Dread(data, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()),
                  "reading files/data");
  }
  return text;
}

void read_series(const Context& context, hid_t root, const std::string& name, StepSeries& steps) {
  const Handle dataset = h5::open_dataset(context, root, "series/" + name);
  for (const StepColumn& column : step_columns()) {
    if (h5::has_column(context, dataset, column.name)) {
      steps.*column.values = h5::number_column(context, dataset, column.name);
    }
  }
}

void read_files(const Context& context, hid_t root, Campaign& campaign) {
  const std::string data = read_data(context, root);
  const auto text_of = [&](const h5::FileEntry& entry) {
    const auto size = static_cast<std::int64_t>(data.size());
    if (entry.offset < 0 || entry.bytes < 0 || entry.offset > size ||
        entry.bytes > size - entry.offset) {
      context.fail("finding the text of " + entry.path);
    }
    return std::string_view(data).substr(static_cast<std::size_t>(entry.offset),
                                         static_cast<std::size_t>(entry.bytes));
  };
  for (const h5::FileEntry& entry : read_index(context, root)) {
    const std::string where = context.file.string() + ": " + entry.path;
    const Json json = parse_json(text_of(entry), where);
    if (entry.kind == "cell") {
      campaign.cells.push_back(
          {run_artifact_from_json(json, where), entry.path, entry.sha256, entry.seq, {}});
    } else if (entry.kind == "pass" && !campaign.cells.empty()) {
      CampaignPass pass{pass_record_from_json(json, where), entry.path, entry.sha256};
      read_series(context, root, entry.series, pass.record.steps);
      campaign.cells.back().passes.push_back(std::move(pass));
    } else if (entry.kind == "parity") {
      campaign.parity.push_back({entry.key, entry.seq, json.value("fields", Json::object()),
                                 json.value("record", Json::object()), entry.path, entry.sha256});
    } else {
      context.fail("reading files/index: unknown kind " + entry.kind + "; that");
    }
  }
}

}  // namespace

Campaign read_campaign_h5(const fs::path& file) {
  const h5::Silence silence;
  (void)open_for_reading(file);  // says so when it is missing or no regular file
  const Context context{file, Fault::input};
  if (H5Fis_hdf5(file.c_str()) <= 0) {
    fail(Fault::input, "{}: not an HDF5 file (or cut off): expected a campaign folder or a {}",
         file.string(), kStoreFile);
  }
  Handle store =
      context.own(H5Fopen(file.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose, "opening");
  if (H5Aexists(store, "format") <= 0 ||
      h5::read_attribute(context, store, "format") != h5::kFormat) {
    fail(Fault::input, "{}: an HDF5 file, but not a campaign store", file.string());
  }
  const std::string version = h5::read_attribute(context, store, "version");
  if (!version.starts_with("1.")) {
    fail(Fault::input, "{}: store version {}; this program reads 1.x", file.string(), version);
  }
  Campaign campaign;
  const auto spec = h5::read_texts(context, store, "spec");
  if (spec.size() != 1) context.fail("reading spec");
  campaign.spec = parse_json(spec[0], file.string() + ": spec");
  campaign.original_format = h5::read_attribute(context, store, "original_format") == "yes";
  campaign.receipts_sha256 = h5::read_attribute(context, store, "receipts_sha256");
  Sha256 hash;
  for (const std::string& line : h5::read_texts(context, store, "receipts")) {
    campaign.receipts.push_back(receipt_from_line(
        line, fmt::format("{}: receipts[{}]", file.string(), campaign.receipts.size())));
    hash.update(line);
    hash.update("\n");
  }
  if (!campaign.original_format && hash.hex() != campaign.receipts_sha256) {
    fail(Fault::input, "{}: its receipts do not match their sha256: the file was altered",
         file.string());
  }
  campaign.pending = h5::read_texts(context, store, "pending");
  campaign.problems = h5::read_texts(context, store, "problems");
  read_files(context, store, campaign);
  context.close(store, "the file");
  return campaign;
}

}  // namespace poros
