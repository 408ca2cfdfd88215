// SPDX-License-Identifier: Apache-2.0
#include "receipts/hdf5_api.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace poros::h5 {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{256} << 10;
constexpr unsigned kDeflateLevel = 1;  // of measured series higher levels gain little

std::atomic<std::int64_t> g_failed_closes{0};

herr_t add_to_text(unsigned, const H5E_error2_t* entry, void* into) {
  auto& text = *static_cast<std::string*>(into);
  if (entry->desc != nullptr && *entry->desc != '\0') {
    text += text.empty() ? "" : "; ";
    text += entry->desc;
  }
  return 0;
}

}  // namespace

std::int64_t failed_closes() noexcept {
  return g_failed_closes;
}
void count_failed_close() noexcept {
  ++g_failed_closes;
}

Silence::Silence() {
  // At the process's end HDF5 would try once more to flush files whose writing failed (a full disk)
  // and crash on them; every file that was closed without an error is complete without that.
  static const herr_t kNoAtExit = H5dont_atexit();
  (void)kNoAtExit;
  H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Silence::~Silence() {
  H5Eset_auto2(H5E_DEFAULT, function_, data_);
}

void Context::fail(const std::string& what) const {
  std::string stack;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, add_to_text, &stack);
  std::string message = file.string() + ": " + what + " failed";
  if (!stack.empty()) message += ": " + stack;
  if (stack.find("lock file") != std::string::npos) {
    message +=
        ". This file system refuses HDF5's locks; nothing here relies on them: set "
        "HDF5_USE_FILE_LOCKING=FALSE";
  } else if (fault == Fault::input) {
    message +=
        ". The file is damaged or no campaign store; rebuild it with: poros bench gather DIR";
  }
  throw Error(fault, message);
}

Handle text_type(const Context& context, std::size_t bytes) {
  Handle type = context.own(H5Tcopy(H5T_C_S1), H5Tclose, "copying a string type");
  context.check(H5Tset_size(type, std::max<std::size_t>(1, bytes)), "sizing a string type");
  context.check(H5Tset_strpad(type, H5T_STR_NULLPAD), "padding of a string type");
  context.check(H5Tset_cset(type, H5T_CSET_UTF8), "encoding of a string type");
  return type;
}

Handle dataset_properties(const Context& context, hsize_t rows, std::size_t row_bytes,
                          bool extendable) {
  Handle list = context.own(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "making a property list");
  context.check(H5Pset_obj_track_times(list, false), "switching times off");
  if (rows == 0 && !extendable) return list;  // chunks of a dataset that can't grow need rows
  hsize_t chunk = std::max<hsize_t>(1, kChunkBytes / std::max<std::size_t>(1, row_bytes));
  if (!extendable) chunk = std::min(chunk, rows);
  context.check(H5Pset_chunk(list, 1, &chunk), "setting the chunk size");
  context.check(H5Pset_shuffle(list), "adding the shuffle filter");
  context.check(H5Pset_deflate(list, kDeflateLevel), "adding the deflate filter");
  context.check(H5Pset_fletcher32(list), "adding the checksum filter");
  return list;
}

void write_attribute(const Context& context, hid_t where, const std::string& name,
                     const std::string& value) {
  Handle type = text_type(context, value.size());
  Handle space = context.own(H5Screate(H5S_SCALAR), H5Sclose, "making a data space");
  Handle attribute =
      context.own(H5Acreate2(where, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
                  "making attribute " + name);
  const std::string padded = value.empty() ? std::string(1, '\0') : value;
  context.check(H5Awrite(attribute, type, padded.data()), "writing attribute " + name);
  context.close(attribute, "attribute " + name);
}

void write_attribute(const Context& context, hid_t where, const std::string& name,
                     const std::vector<std::string>& values) {
  std::size_t width = 1;
  for (const auto& value : values) width = std::max(width, value.size());
  std::string packed(width * std::max<std::size_t>(1, values.size()), '\0');
  for (std::size_t i = 0; i < values.size(); ++i) values[i].copy(&packed[i * width], width);
  Handle type = text_type(context, width);
  const hsize_t count = values.size();
  Handle space = context.own(H5Screate_simple(1, &count, nullptr), H5Sclose, "making a data space");
  Handle attribute =
      context.own(H5Acreate2(where, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
                  "making attribute " + name);
  context.check(H5Awrite(attribute, type, packed.data()), "writing attribute " + name);
  context.close(attribute, "attribute " + name);
}

Handle make_group(const Context& context, hid_t parent, const std::string& name) {
  Handle list = context.own(H5Pcreate(H5P_GROUP_CREATE), H5Pclose, "making a property list");
  context.check(H5Pset_obj_track_times(list, false), "switching times off");
  return context.own(H5Gcreate2(parent, name.c_str(), H5P_DEFAULT, list, H5P_DEFAULT), H5Gclose,
                     "making group " + name);
}

void write_texts(const Context& context, hid_t parent, const std::string& name,
                 const std::vector<std::string>& values) {
  std::size_t width = 1;
  for (const auto& value : values) width = std::max(width, value.size());
  const hsize_t rows = values.size();
  Handle type = text_type(context, width);
  Handle space = context.own(H5Screate_simple(1, &rows, nullptr), H5Sclose, "making a data space");
  Handle list = dataset_properties(context, rows, width);
  Handle dataset =
      context.own(H5Dcreate2(parent, name.c_str(), type, space, H5P_DEFAULT, list, H5P_DEFAULT),
                  H5Dclose, "making dataset " + name);
  // In batches, so that one long text does not make all of them wide in memory at once.
  const std::size_t batch = std::max<std::size_t>(1, (std::size_t{4} << 20) / width);
  for (std::size_t first = 0; first < values.size(); first += batch) {
    const std::size_t count = std::min(batch, values.size() - first);
    std::string packed(count * width, '\0');
    for (std::size_t i = 0; i < count; ++i) values[first + i].copy(&packed[i * width], width);
    const hsize_t start = first, size = count;
    Handle part = context.own(H5Screate_simple(1, &size, nullptr), H5Sclose, "making a data space");
    context.check(H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, nullptr, &size, nullptr),
                  "selecting rows of " + name);
    context.check(H5Dwrite(dataset, type, part, space, H5P_DEFAULT, packed.data()),
                  "writing dataset " + name);
  }
  context.close(dataset, "dataset " + name);
}

void Table::add(Column column, std::size_t rows) {
  if (columns_.empty()) rows_ = rows;
  if (rows != rows_) fail(Fault::run, "column {} has {} rows, not {}", column.name, rows, rows_);
  columns_.push_back(std::move(column));
}

void Table::text(std::string name, std::vector<std::string> values) {
  Column column{Kind::text, std::move(name), "", {}, {}, {}, 1};
  for (const auto& value : values) column.size = std::max(column.size, value.size());
  const std::size_t rows = values.size();
  column.texts = std::move(values);
  add(std::move(column), rows);
}

void Table::number(std::string name, std::string unit, std::vector<double> values) {
  const std::size_t rows = values.size();
  add({Kind::number, std::move(name), std::move(unit), {}, std::move(values), {}}, rows);
}

void Table::integer(std::string name, std::string unit, std::vector<std::int64_t> values) {
  const std::size_t rows = values.size();
  add({Kind::integer, std::move(name), std::move(unit), {}, {}, std::move(values)}, rows);
}

Handle Table::write(const Context& context, hid_t parent, const std::string& name) const {
  std::size_t row_bytes = 0;
  for (const Column& column : columns_) row_bytes += column.size;
  Handle type = context.own(H5Tcreate(H5T_COMPOUND, row_bytes), H5Tclose, "making a row type");
  std::string packed(rows_ * row_bytes, '\0');
  std::vector<std::string> units;
  std::size_t offset = 0;
  for (const Column& column : columns_) {
    Handle text;
    if (column.kind == Kind::text) text = text_type(context, column.size);
    const hid_t member = column.kind == Kind::text     ? static_cast<hid_t>(text)
                         : column.kind == Kind::number ? H5T_IEEE_F64LE
                                                       : H5T_STD_I64LE;
    context.check(H5Tinsert(type, column.name.c_str(), offset, member),
                  "adding column " + column.name);
    for (std::size_t row = 0; row < rows_; ++row) {
      char* at = &packed[row * row_bytes + offset];
      switch (column.kind) {
        case Kind::text:
          column.texts[row].copy(at, column.size);
          break;
        case Kind::number:
          std::memcpy(at, &column.numbers[row], sizeof(double));
          break;
        case Kind::integer:
          std::memcpy(at, &column.integers[row], sizeof(std::int64_t));
          break;
      }
    }
    units.push_back(column.unit);
    offset += column.size;
  }
  const hsize_t rows = rows_;
  Handle space = context.own(H5Screate_simple(1, &rows, nullptr), H5Sclose, "making a data space");
  Handle list = dataset_properties(context, rows, row_bytes);
  Handle dataset =
      context.own(H5Dcreate2(parent, name.c_str(), type, space, H5P_DEFAULT, list, H5P_DEFAULT),
                  H5Dclose, "making table " + name);
  if (rows > 0) {
    context.check(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, packed.data()),
                  "writing table " + name);
  }
  write_attribute(context, dataset, "units", units);
  return dataset;
}

}  // namespace poros::h5
