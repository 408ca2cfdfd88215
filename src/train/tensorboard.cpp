// SPDX-License-Identifier: Apache-2.0
#include "train/tensorboard.hpp"

#include <array>
#include <bit>
#include <chrono>
#include <cstdio>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.hpp"

namespace poros {
namespace {

double unix_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

template <typename T>
void put_little_endian(std::string& bytes, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) {
    bytes += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  }
}

// Protobuf's wire format: a key (field number and wire type), then the value.
enum Wire : std::uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& bytes, std::uint64_t value) {
  while (value >= 0x80) {
    bytes += static_cast<char>(static_cast<unsigned char>(value | 0x80));
    value >>= 7;
  }
  bytes += static_cast<char>(static_cast<unsigned char>(value));
}

void put_key(std::string& bytes, std::uint64_t field, Wire wire) {
  put_varint(bytes, field << 3 | wire);
}

void put_bytes(std::string& bytes, std::uint64_t field, std::string_view value) {
  put_key(bytes, field, kBytes);
  put_varint(bytes, value.size());
  bytes += value;
}

/// Event.wall_time = 1, Event.step = 2.
std::string event_head(std::int64_t step) {
  std::string event;
  put_key(event, 1, kFixed64);
  put_little_endian(event, std::bit_cast<std::uint64_t>(unix_time_s()));
  put_key(event, 2, kVarint);
  put_varint(event, static_cast<std::uint64_t>(step));
  return event;
}

std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return std::rotr(crc, 15) + 0xA282EAD8U;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static const std::array<std::uint32_t, 256> table = [] {
    std::array<std::uint32_t, 256> entries{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1U) != 0U ? 0x82F63B78U : 0U);
      entries[i] = crc;
    }
    return entries;
  }();
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char byte : bytes) {
    crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(byte)) & 0xFFU];
  }
  return ~crc;
}

TensorboardWriter::TensorboardWriter(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(Fault::io, "{}: {}", folder.string(), error.message());
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  path_ = folder /
          fmt::format("events.out.tfevents.{:.0f}.{}.{}", unix_time_s(), host.data(), ::getpid());
  fd_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd_) fail_errno(Fault::io, path_.string());
  std::string event = event_head(0);
  put_bytes(event, 3, "brain.Event:2");  // Event.file_version
  append(event);
}

void TensorboardWriter::scalars(std::int64_t step,
                                const std::vector<std::pair<std::string, double>>& values) {
  std::string summary;
  for (const auto& [tag, number] : values) {
    std::string value;
    put_bytes(value, 1, tag);  // Summary.Value.tag, then simple_value
    put_key(value, 2, kFixed32);
    put_little_endian(value, std::bit_cast<std::uint32_t>(static_cast<float>(number)));
    put_bytes(summary, 1, value);  // Summary.value
  }
  std::string event = event_head(step);
  put_bytes(event, 5, summary);  // Event.summary
  append(event);
}

void TensorboardWriter::append(const std::string& event) {
  if (!fd_) return;
  std::string record;
  put_little_endian(record, std::uint64_t{event.size()});
  const std::uint32_t length_crc = masked_crc(record);
  put_little_endian(record, length_crc);
  record += event;
  put_little_endian(record, masked_crc(event));
  try {
    write_all(fd_.get(), record.data(), record.size(), path_);
  } catch (const Error& error) {
    std::fprintf(stderr, "poros-cell: TensorBoard's file ends here: %s\n", error.what());
    fd_.reset();
  }
}

}  // namespace poros
