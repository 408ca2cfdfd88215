// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <set>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/files.hpp"
#include "base/json.hpp"
#include "base/sha256.hpp"
#include "receipts/hdf5_api.hpp"
#include "receipts/hdf5_cells.hpp"
#include "receipts/hdf5_format.hpp"
#include "receipts/hdf5_store.hpp"
#include "receipts/lease.hpp"

namespace poros {
namespace fs = std::filesystem;
namespace {

using h5::Context;
using h5::Handle;

/// /files: texts one after another in one compressed dataset, found through an index.
class Files {
 public:
  Files(const Context& context, hid_t group) : context_(context) {
    const hsize_t none = 0, unlimited = H5S_UNLIMITED;
    Handle space =
        context.own(H5Screate_simple(1, &none, &unlimited), H5Sclose, "making a data space");
    Handle list = h5::dataset_properties(context, 0, 1, true);
    data_ =
        context.own(H5Dcreate2(group, "data", H5T_STD_U8LE, space, H5P_DEFAULT, list, H5P_DEFAULT),
                    H5Dclose, "making dataset files/data");
  }

  void add(h5::FileEntry entry, const std::string& text) {
    entry.offset = static_cast<std::int64_t>(flushed_ + buffer_.size());
    entry.bytes = static_cast<std::int64_t>(text.size());
    buffer_ += text;
    entries_.push_back(std::move(entry));
    if (buffer_.size() >= kFlushBytes) flush();
  }

  void finish(hid_t group) {
    flush();
    context_.close(data_, "dataset files/data");
    h5::Table table;
    const auto texts = [&](const char* name, auto member) {
      std::vector<std::string> values;
      for (const auto& entry : entries_) values.push_back(entry.*member);
      table.text(name, std::move(values));
    };
    const auto integers = [&](const char* name, const char* unit, auto member) {
      std::vector<std::int64_t> values;
      for (const auto& entry : entries_) values.push_back(entry.*member);
      table.integer(name, unit, std::move(values));
    };
    texts("kind", &h5::FileEntry::kind);
    texts("path", &h5::FileEntry::path);
    texts("sha256", &h5::FileEntry::sha256);
    texts("key", &h5::FileEntry::key);
    texts("series", &h5::FileEntry::series);
    integers("seq", "1", &h5::FileEntry::seq);
    integers("offset", "byte", &h5::FileEntry::offset);
    integers("bytes", "byte", &h5::FileEntry::bytes);
    Handle dataset = table.write(context_, group, "index");
    context_.close(dataset, "table files/index");
  }

 private:
  static constexpr std::size_t kFlushBytes = std::size_t{4} << 20;

  void flush() {
    if (buffer_.empty()) return;
    const hsize_t start = flushed_, count = buffer_.size(), total = start + count;
    context_.check(H5Dset_extent(data_, &total), "extending files/data");
    Handle space = context_.own(H5Dget_space(data_), H5Sclose, "the data space of files/data");
    context_.check(H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, nullptr, &count, nullptr),
                   "selecting a part of files/data");
    Handle part =
        context_.own(H5Screate_simple(1, &count, nullptr), H5Sclose, "making a data space");
    context_.check(H5Dwrite(data_, H5T_NATIVE_UINT8, part, space, H5P_DEFAULT, buffer_.data()),
                   "writing files/data");
    flushed_ += buffer_.size();
    buffer_.clear();
  }

  const Context& context_;
  Handle data_;
  std::string buffer_;
  std::size_t flushed_ = 0;
  std::vector<h5::FileEntry> entries_;
};

/// A group name for a cell key; keys that can't be one are replaced by their hash.
std::string group_name(const std::string& key) {
  return is_valid_id(key) ? key : sha256_hex(key);
}

void write_series(const Context& context, hid_t group, const std::string& name,
                  const PassRecord& record, const std::string& model_id) {
  std::size_t steps = 0;
  for (const StepColumn& column : step_columns()) {
    steps = std::max(steps, (record.steps.*column.values).size());
  }
  std::vector<std::int64_t> numbers(steps);
  std::iota(numbers.begin(), numbers.end(), 1);
  h5::Table table;
  table.integer("step", "1", std::move(numbers));
  for (const StepColumn& column : step_columns()) {
    const auto& values = record.steps.*column.values;
    if (!values.empty()) table.number(column.name, column.unit, values);
  }
  Handle dataset = table.write(context, group, name);
  h5::write_attribute(context, dataset, "method", record.method);
  h5::write_attribute(context, dataset, "model_id", model_id);
  h5::write_attribute(context, dataset, "status", record.status);
  context.close(dataset, "series " + name);
}

void write_passes(const Context& context, hid_t series, Files& files, const CampaignCell& cell,
                  const std::vector<CampaignPass>& passes, std::set<std::string>& used) {
  if (passes.empty()) return;
  std::string name = group_name(cell.artifact.cell_key);
  while (!used.insert(name).second) name += "_";
  Handle group = h5::make_group(context, series, name);
  std::set<std::string> members;
  for (const CampaignPass& pass : passes) {
    std::string member = fmt::format("{}.{}", pass.record.pass, pass.record.attempt);
    while (!members.insert(member).second) member += "_";
    write_series(context, group, member, pass.record, cell.artifact.model_id);
    Json json = to_json(pass.record);
    json.erase("steps");
    files.add({"pass", pass.path, pass.sha256, cell.artifact.cell_key,
               fmt::format("{}/{}", name, member), -1},
              dump_json(json));
  }
  context.close(group, "group " + name);
}

Json first_environment(const Campaign& campaign) {
  for (const CampaignCell& cell : campaign.cells) {
    if (!cell.artifact.environment.empty()) return cell.artifact.environment;
  }
  return Json::object();
}

void write_content(const Context& context, hid_t root, const Campaign& campaign,
                   const PassLoader& loader) {
  const auto spec_text = [&](const char* key) {
    return json_find<std::string>(campaign.spec, key, kSpecFile).value_or("");
  };
  h5::write_attribute(context, root, "format", h5::kFormat);
  h5::write_attribute(context, root, "version", h5::kVersion);
  h5::write_attribute(context, root, "spec_id", spec_text("spec_id"));
  h5::write_attribute(context, root, "spec_sha256", spec_text("spec_sha256"));
  h5::write_attribute(context, root, "receipts_sha256", campaign.receipts_sha256);
  h5::write_attribute(context, root, "environment", dump_json(first_environment(campaign)));
  h5::write_attribute(context, root, "original_format", campaign.original_format ? "yes" : "no");
  h5::write_texts(context, root, "spec", {dump_json(campaign.spec)});

  {
    std::vector<std::string> lines;
    lines.reserve(campaign.receipts.size());
    for (const Receipt& receipt : campaign.receipts) {
      lines.push_back(to_line(receipt));
      lines.back().pop_back();  // its '\n'
    }
    h5::write_texts(context, root, "receipts", lines);
  }
  h5::write_texts(context, root, "pending", campaign.pending);

  Handle cells = cells_table(campaign).write(context, root, "cells");
  context.close(cells, "table cells");

  Handle series = h5::make_group(context, root, "series");
  Handle group = h5::make_group(context, root, "files");
  Files files(context, group);
  std::set<std::string> used;
  for (const CampaignCell& cell : campaign.cells) {
    files.add({"cell", cell.path, cell.sha256, cell.artifact.cell_key, "", cell.seq},
              dump_json(to_json(cell.artifact)));
    if (loader) {
      write_passes(context, series, files, cell, loader(cell), used);
    } else {
      write_passes(context, series, files, cell, cell.passes, used);
    }
  }
  for (const CampaignParity& parity : campaign.parity) {
    files.add({"parity", parity.path, parity.sha256, parity.group_key, "", parity.seq},
              dump_json(Json{{"fields", parity.fields}, {"record", parity.record}}));
  }
  files.finish(group);
  context.close(group, "group files");
  context.close(series, "group series");
  h5::write_texts(context, root, "problems", campaign.problems);
}

Handle create_file(const Context& context, const fs::path& path) {
  Handle access = context.own(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "making a property list");
  context.check(H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110),
                "setting the file format");
  Handle create = context.own(H5Pcreate(H5P_FILE_CREATE), H5Pclose, "making a property list");
  context.check(H5Pset_obj_track_times(create, false), "switching times off");
  return context.own(H5Fcreate(path.c_str(), H5F_ACC_EXCL, create, access), H5Fclose, "creation");
}

}  // namespace

void write_campaign_h5(const fs::path& file, const Campaign& campaign, const PassLoader& loader) {
  const h5::Silence silence;
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  // One name a process: two that write at once must not rename each other's half-written file.
  const LeaseHolder self = this_process("", "");
  const fs::path temporary =
      folder / fmt::format(".{}.{}.{}.tmp", file.filename().string(), self.host, self.pid);
  ::unlink(temporary.c_str());  // of a dead process that had this pid
  const Context context{file, Fault::io};
  const std::int64_t failed_before = h5::failed_closes();
  try {
    Handle store = create_file(context, temporary);
    write_content(context, store, campaign, loader);
    context.check(H5Fflush(store, H5F_SCOPE_GLOBAL), "flush");
    context.close(store, "the file");
    if (h5::failed_closes() != failed_before) fail(Fault::io, "{}: a close failed", file.string());
    UniqueFd fd(::open(temporary.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd || ::fsync(fd.get()) != 0) fail_errno(Fault::io, file.string() + ": sync");
    if (::rename(temporary.c_str(), file.c_str()) != 0) {
      fail_errno(Fault::io, file.string() + ": rename");
    }
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_folder(folder);
}

Campaign gather(const fs::path& dir) {
  Campaign campaign = load_campaign_folder(dir, false);
  write_campaign_h5(dir / kStoreFile, campaign, [&](const CampaignCell& cell) {
    return load_passes(dir, cell, campaign.problems);
  });
  return campaign;
}

}  // namespace poros
