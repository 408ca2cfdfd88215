// SPDX-License-Identifier: Apache-2.0
// Thin checked wrappers over HDF5's C interface: each return code is looked at, that of every close
// too, and becomes an Error with the text of HDF5's error stack.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <hdf5.h>

#include "base/error.hpp"

namespace poros::h5 {

/// Closes that failed in this process. A destructor can't throw; whoever writes a file compares
/// this count before and after.
[[nodiscard]] std::int64_t failed_closes() noexcept;
void count_failed_close() noexcept;

/// Owns an HDF5 id. Context::close() throws when closing fails, the destructor counts it.
class Handle {
 public:
  using Closer = herr_t (*)(hid_t);
  Handle() = default;
  Handle(hid_t id, Closer closer) : id_(id), closer_(closer) {}
  Handle(Handle&& other) noexcept
      : id_(std::exchange(other.id_, H5I_INVALID_HID)), closer_(other.closer_) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      if (close_quietly() < 0) count_failed_close();
      id_ = std::exchange(other.id_, H5I_INVALID_HID);
      closer_ = other.closer_;
    }
    return *this;
  }
  ~Handle() {
    if (close_quietly() < 0) count_failed_close();
  }

  operator hid_t() const noexcept { return id_; }  // NOLINT(google-explicit-constructor)
  herr_t close_quietly() noexcept {
    const hid_t id = std::exchange(id_, H5I_INVALID_HID);
    return id >= 0 ? closer_(id) : 0;
  }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Closer closer_ = nullptr;
};

/// Keeps HDF5 from printing to stderr while it lives; our Errors carry the text.
class Silence {
 public:
  Silence();
  ~Silence();
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;

 private:
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

/// What an error says: which file, and whose fault (io when writing, input when reading).
struct Context {
  std::filesystem::path file;
  Fault fault = Fault::io;

  [[noreturn]] void fail(const std::string& what) const;
  Handle own(hid_t id, Handle::Closer closer, const std::string& what) const {
    if (id < 0) fail(what);
    return {id, closer};
  }
  void check(long long code, const std::string& what) const {
    if (code < 0) fail(what);
  }
  void close(Handle& handle, const std::string& what) const {
    check(handle.close_quietly(), "closing " + what);
  }
};

/// A table under construction, column by column; all columns of one length.
class Table {
 public:
  void text(std::string name, std::vector<std::string> values);
  void number(std::string name, std::string unit, std::vector<double> values);
  void integer(std::string name, std::string unit, std::vector<std::int64_t> values);

  [[nodiscard]] std::size_t rows() const { return rows_; }
  /// Creates parent/name as a compound dataset with the attribute `units`.
  /// @returns the open dataset, for more attributes
  Handle write(const Context& context, hid_t parent, const std::string& name) const;

 private:
  enum class Kind { text, number, integer };
  struct Column {
    Kind kind;
    std::string name, unit;
    std::vector<std::string> texts;
    std::vector<double> numbers;
    std::vector<std::int64_t> integers;
    std::size_t size = 8;  // bytes of one value
  };
  void add(Column column, std::size_t rows);
  std::vector<Column> columns_;
  std::size_t rows_ = 0;
};

/// Dataset-creation properties: no times; for rows > 0 chunked, shuffled, compressed, checksummed.
Handle dataset_properties(const Context& context, hsize_t rows, std::size_t row_bytes,
                          bool extendable = false);
Handle text_type(const Context& context, std::size_t bytes);
void write_attribute(const Context& context, hid_t where, const std::string& name,
                     const std::string& value);
void write_attribute(const Context& context, hid_t where, const std::string& name,
                     const std::vector<std::string>& values);
/// A list of texts as fixed-length strings.
void write_texts(const Context& context, hid_t parent, const std::string& name,
                 const std::vector<std::string>& values);
Handle make_group(const Context& context, hid_t parent, const std::string& name);

[[nodiscard]] std::string read_attribute(const Context& context, hid_t where,
                                         const std::string& name);
[[nodiscard]] std::vector<std::string> read_texts(const Context& context, hid_t parent,
                                                  const std::string& name);
[[nodiscard]] Handle open_dataset(const Context& context, hid_t parent, const std::string& name);
/// Number of elements of a one-dimensional dataset.
[[nodiscard]] std::size_t length_of(const Context& context, hid_t dataset, const std::string& name);
[[nodiscard]] bool has_column(const Context& context, hid_t dataset, const std::string& column);
[[nodiscard]] std::vector<std::string> text_column(const Context& context, hid_t dataset,
                                                   const std::string& column);
[[nodiscard]] std::vector<double> number_column(const Context& context, hid_t dataset,
                                                const std::string& column);
[[nodiscard]] std::vector<std::int64_t> integer_column(const Context& context, hid_t dataset,
                                                       const std::string& column);

}  // namespace poros::h5
