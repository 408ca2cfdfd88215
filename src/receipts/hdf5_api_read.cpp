// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "receipts/hdf5_api.hpp"

namespace poros::h5 {
namespace {

// A damaged or hostile file must not ask for more memory than a real campaign could need.
constexpr std::size_t kMaxRows = std::size_t{1} << 26;
constexpr std::size_t kMaxBytes = std::size_t{8} << 30;

std::string unpadded(const char* text, std::size_t width) {
  std::size_t size = width;
  while (size > 0 && text[size - 1] == '\0') --size;
  return {text, size};
}

std::size_t checked_product(const Context& context, std::size_t rows, std::size_t width,
                            const std::string& name) {
  if (width == 0 || rows > kMaxRows || rows > kMaxBytes / width) {
    context.fail("reading " + name + ": " + std::to_string(rows) + " rows of " +
                 std::to_string(width) + " bytes are too many; that");
  }
  return rows * width;
}

std::vector<std::string> unpack(const std::string& packed, std::size_t rows, std::size_t width) {
  std::vector<std::string> values;
  values.reserve(rows);
  for (std::size_t i = 0; i < rows; ++i) values.push_back(unpadded(&packed[i * width], width));
  return values;
}

std::size_t text_width(const Context& context, hid_t type, const std::string& name) {
  if (H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) != 0) {
    context.fail("reading " + name + " as fixed-length text");
  }
  return H5Tget_size(type);
}

/// A row type for memory that holds one column only, packed.
Handle single_column(const Context& context, const std::string& column, hid_t member) {
  Handle type =
      context.own(H5Tcreate(H5T_COMPOUND, H5Tget_size(member)), H5Tclose, "making a row type");
  context.check(H5Tinsert(type, column.c_str(), 0, member), "adding column " + column);
  return type;
}

template <typename T>
std::vector<T> column_of(const Context& context, hid_t dataset, const std::string& column,
                         hid_t member) {
  const std::size_t rows = length_of(context, dataset, column);
  std::vector<T> values(rows);
  if (!has_column(context, dataset, column)) context.fail("finding column " + column);
  if (rows == 0) return values;
  const Handle type = single_column(context, column, member);
  context.check(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
                "reading column " + column);
  return values;
}

}  // namespace

Handle open_dataset(const Context& context, hid_t parent, const std::string& name) {
  return context.own(H5Dopen2(parent, name.c_str(), H5P_DEFAULT), H5Dclose, "opening " + name);
}

std::size_t length_of(const Context& context, hid_t dataset, const std::string& name) {
  const Handle space = context.own(H5Dget_space(dataset), H5Sclose, "the data space of " + name);
  hsize_t rows = 0;
  if (H5Sget_simple_extent_ndims(space) != 1 ||
      H5Sget_simple_extent_dims(space, &rows, nullptr) != 1 || rows > kMaxRows * 64) {
    context.fail("reading " + name + " as a list");
  }
  return rows;
}

std::string read_attribute(const Context& context, hid_t where, const std::string& name) {
  Handle attribute =
      context.own(H5Aopen(where, name.c_str(), H5P_DEFAULT), H5Aclose, "opening attribute " + name);
  const Handle file_type =
      context.own(H5Aget_type(attribute), H5Tclose, "the type of attribute " + name);
  const std::size_t width = text_width(context, file_type, "attribute " + name);
  const Handle space =
      context.own(H5Aget_space(attribute), H5Sclose, "the data space of attribute " + name);
  if (H5Sget_simple_extent_npoints(space) != 1) context.fail("reading attribute " + name);
  std::string value(checked_product(context, 1, width, name), '\0');
  const Handle type = text_type(context, width);
  context.check(H5Aread(attribute, type, value.data()), "reading attribute " + name);
  return unpadded(value.data(), value.size());
}

std::vector<std::string> read_texts(const Context& context, hid_t parent, const std::string& name) {
  const Handle dataset = open_dataset(context, parent, name);
  const Handle file_type = context.own(H5Dget_type(dataset), H5Tclose, "the type of " + name);
  const std::size_t width = text_width(context, file_type, name);
  const std::size_t rows = length_of(context, dataset, name);
  std::string packed(checked_product(context, rows, width, name), '\0');
  if (rows == 0) return {};
  const Handle type = text_type(context, width);
  context.check(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, packed.data()),
                "reading " + name);
  return unpack(packed, rows, width);
}

bool has_column(const Context& context, hid_t dataset, const std::string& column) {
  const Handle type = context.own(H5Dget_type(dataset), H5Tclose, "the type of a table");
  return H5Tget_class(type) == H5T_COMPOUND && H5Tget_member_index(type, column.c_str()) >= 0;
}

std::vector<std::string> text_column(const Context& context, hid_t dataset,
                                     const std::string& column) {
  const Handle row = context.own(H5Dget_type(dataset), H5Tclose, "the type of a table");
  if (!has_column(context, dataset, column)) context.fail("finding column " + column);
  const auto index = static_cast<unsigned>(H5Tget_member_index(row, column.c_str()));
  const Handle member =
      context.own(H5Tget_member_type(row, index), H5Tclose, "the type of column " + column);
  const std::size_t width = text_width(context, member, column);
  const std::size_t rows = length_of(context, dataset, column);
  std::string packed(checked_product(context, rows, width, column), '\0');
  if (rows == 0) return {};
  const Handle text = text_type(context, width);
  const Handle type = single_column(context, column, text);
  context.check(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, packed.data()),
                "reading column " + column);
  return unpack(packed, rows, width);
}

std::vector<double> number_column(const Context& context, hid_t dataset,
                                  const std::string& column) {
  return column_of<double>(context, dataset, column, H5T_NATIVE_DOUBLE);
}

std::vector<std::int64_t> integer_column(const Context& context, hid_t dataset,
                                         const std::string& column) {
  return column_of<std::int64_t>(context, dataset, column, H5T_NATIVE_INT64);
}

}  // namespace poros::h5
