// SPDX-License-Identifier: Apache-2.0
#include "base/sha256.hpp"

#include <array>
#include <cerrno>
#include <vector>

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/files.hpp"

namespace poros {

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  if (context_->evp == nullptr || EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr) != 1) {
    fail(Fault::environment, "OpenSSL has no SHA-256");
  }
}
Sha256::~Sha256() = default;

void Sha256::update(const void* data, std::size_t bytes) {
  if (EVP_DigestUpdate(context_->evp, data, bytes) != 1) fail(Fault::run, "SHA-256 failed");
}

std::string Sha256::hex() {
  std::array<unsigned char, 32> digest{};
  if (EVP_DigestFinal_ex(context_->evp, digest.data(), nullptr) != 1) {
    fail(Fault::run, "SHA-256 failed");
  }
  std::string text;
  text.reserve(64);
  for (const unsigned char byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

std::string sha256_hex(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  return hash.hex();
}

std::string sha256_file(const std::filesystem::path& path) {
  const UniqueFd fd = open_for_reading(path);
  std::vector<char> buffer(1 << 20);
  Sha256 hash;
  for (;;) {
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(Fault::io, path.string() + ": read");
    if (got == 0) return hash.hex();
    hash.update(buffer.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace poros
