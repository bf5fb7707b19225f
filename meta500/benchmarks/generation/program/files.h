/* Files: read by mapping them into memory, written beside their place and moved there, checksums. */
#ifndef META500_FILES_H
#define META500_FILES_H

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace meta500 {

/* Ends the program with a message; see main(). */
[[noreturn]] inline void fail(const std::string &message) { throw std::runtime_error(message); }

/* What the system says about the last error. */
inline std::string reason() { return std::strerror(errno); }

inline bool is_file(const std::string &path) {
    struct stat found;
    return stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode);
}

inline bool is_folder(const std::string &path) {
    struct stat found;
    return stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

/* A file's contents, mapped into memory: the system reads pages when they are used. */
class Mapping {
  public:
    explicit Mapping(const std::string &path) {
        const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        struct stat found;
        if (file < 0 || fstat(file, &found) != 0) {
            const std::string why = reason();
            if (file >= 0) {
                ::close(file);
            }
            fail(path + ": cannot be read: " + why);
        }
        if (!S_ISREG(found.st_mode)) {
            ::close(file);
            fail(path + ": is no file");
        }
        size_ = static_cast<std::size_t>(found.st_size);
        if (size_ != 0) {
            void *start = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
            if (start == MAP_FAILED) {
                const std::string why = reason();
                ::close(file);
                fail(path + ": cannot be read: " + why);
            }
            data_ = static_cast<const char *>(start);
        }
        ::close(file);
    }
    Mapping(Mapping &&other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    Mapping &operator=(Mapping &&other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~Mapping() {
        if (data_ != nullptr) {
            munmap(const_cast<char *>(data_), size_);
        }
    }

    const char *data() const { return data_; }
    std::size_t size() const { return size_; }

  private:
    const char *data_ = nullptr;
    std::size_t size_ = 0;
};

/* A file that is complete or not there: written under another name, and moved when all is on the disk. */
class NewFile {
  public:
    explicit NewFile(const std::string &path) : path_(path), part_(path + ".part" + std::to_string(getpid())) {
        file_ = std::fopen(part_.c_str(), "wb");
        if (file_ == nullptr) {
            fail(path_ + ": cannot be written: " + reason());
        }
    }
    NewFile(const NewFile &) = delete;
    NewFile &operator=(const NewFile &) = delete;
    ~NewFile() {
        if (file_ != nullptr) {
            std::fclose(file_);
            std::remove(part_.c_str());
        }
    }

    void write(const void *data, std::size_t bytes) {
        if (bytes != 0 && std::fwrite(data, 1, bytes, file_) != bytes) {
            fail(path_ + ": cannot be written: " + reason());
        }
    }

    void finish() {
        if (std::fflush(file_) != 0 || fsync(fileno(file_)) != 0) {
            fail(path_ + ": cannot be written: " + reason());
        }
        std::fclose(std::exchange(file_, nullptr));
        if (std::rename(part_.c_str(), path_.c_str()) != 0) {
            const std::string why = reason();
            std::remove(part_.c_str());
            fail(path_ + ": cannot be written: " + why);
        }
    }

  private:
    std::string path_, part_;
    std::FILE *file_ = nullptr;
};

namespace detail {

using CrcTables = std::array<std::array<std::uint32_t, 256>, 8>;

inline CrcTables make_crc_tables() {
    CrcTables tables{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) {
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        }
        tables[0][byte] = crc;
    }
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        for (std::size_t k = 1; k < 8; ++k) {
            tables[k][byte] = tables[k - 1][byte] >> 8 ^ tables[0][tables[k - 1][byte] & 255];
        }
    }
    return tables;
}

}  // namespace detail

/* The CRC-32 of zip and zlib; `before` is that of what comes before. Eight bytes at a time. */
inline std::uint32_t crc32(const void *data, std::size_t bytes, std::uint32_t before = 0) {
    static const detail::CrcTables tables = detail::make_crc_tables();
    const auto *at = static_cast<const unsigned char *>(data);
    std::uint32_t crc = ~before;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        const std::uint32_t low = crc ^ (at[0] | std::uint32_t(at[1]) << 8 | std::uint32_t(at[2]) << 16 |
                                         std::uint32_t(at[3]) << 24);
        crc = tables[7][low & 255] ^ tables[6][low >> 8 & 255] ^ tables[5][low >> 16 & 255] ^ tables[4][low >> 24] ^
              tables[3][at[4]] ^ tables[2][at[5]] ^ tables[1][at[6]] ^ tables[0][at[7]];
    }
    for (; bytes != 0; --bytes, ++at) {
        crc = crc >> 8 ^ tables[0][(crc ^ *at) & 255];
    }
    return ~crc;
}

/* A CRC-32 as eight hexadecimal digits. */
inline std::string hex(std::uint32_t crc) {
    char text[16];
    std::snprintf(text, sizeof text, "%08x", static_cast<unsigned>(crc));
    return text;
}

}  // namespace meta500

#endif
