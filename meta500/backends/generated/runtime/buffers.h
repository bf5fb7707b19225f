/* Large zeroed buffers on huge pages.
 *
 * Pages are given by the system at the first write: let the thread that will use a part write it first. Nothing here
 * throws: what does not fit is a null pointer. */
#ifndef META500_BUFFERS_H
#define META500_BUFFERS_H

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace meta500 {

inline constexpr std::size_t alignment = 64;                  // bytes
inline constexpr std::size_t huge_page = std::size_t(2) << 20;  // bytes; buffers from this size on have own pages

namespace detail {

/* The number after `name` in a file of lines "name number"; for an empty name the file's first word. -1: none. */
inline long long number_in(const char *path, const char *name) noexcept {
    std::FILE *file = std::fopen(path, "r");
    if (file == nullptr) {
        return -1;
    }
    char line[256];
    long long value = -1;
    const std::size_t length = std::strlen(name);
    while (value < 0 && std::fgets(line, sizeof line, file) != nullptr) {
        if (std::strncmp(line, name, length) == 0 && std::sscanf(line + length, " %lld", &value) != 1) {
            value = -1;
        }
    }
    std::fclose(file);
    return value;
}

}  // namespace detail

/* Bytes that the machine, or the control group of the process, still has; the largest number where that is unknown. */
inline std::size_t available_memory() noexcept {
    std::size_t bytes = std::numeric_limits<std::size_t>::max();
    const long long free_kib = detail::number_in("/proc/meminfo", "MemAvailable:");
    if (free_kib >= 0) {
        const long long swap_kib = detail::number_in("/proc/meminfo", "SwapFree:");
        bytes = (std::size_t(free_kib) + std::size_t(swap_kib > 0 ? swap_kib : 0)) * 1024;
    }
    const long long limit = detail::number_in("/sys/fs/cgroup/memory.max", "");  // the word "max" is no number
    const long long used = detail::number_in("/sys/fs/cgroup/memory.current", "");
    if (limit >= 0 && used >= 0) {
        // Pages of files count as used but are given back under pressure.
        const long long cached = detail::number_in("/sys/fs/cgroup/memory.stat", "file ");
        const long long left = limit - used + (cached > 0 ? cached : 0);
        const std::size_t group = left > 0 ? std::size_t(left) : 0;
        bytes = group < bytes ? group : bytes;
    }
    return bytes;
}

/* `bytes` of zeros at a multiple of 64 bytes, or null: they do not fit into the memory that is left. */
inline void *allocate(std::size_t bytes) noexcept {
    if (bytes == 0) {
        bytes = alignment;
    }
    if (bytes > std::numeric_limits<std::size_t>::max() / 2) {
        return nullptr;
    }
#if defined(__linux__)
    if (bytes >= huge_page) {
        if (bytes > available_memory()) {
            return nullptr;  // the system would promise it, and end the process when it is used
        }
        // Room for a start at a multiple of the huge page; what is over is given back.
        const std::size_t whole = (bytes + huge_page - 1) / huge_page * huge_page;
        const std::size_t mapped = whole + huge_page;
        void *start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (start == MAP_FAILED) {
            return nullptr;
        }
        const std::uintptr_t from = reinterpret_cast<std::uintptr_t>(start);
        const std::size_t before = (huge_page - from % huge_page) % huge_page;
        char *data = static_cast<char *>(start) + before;
        if (before != 0) {
            munmap(start, before);
        }
        if (before != huge_page) {
            munmap(data + whole, huge_page - before);
        }
        madvise(data, whole, MADV_HUGEPAGE);  // advice: pages of the usual size will do
        return data;
    }
#endif
    void *data = ::operator new(bytes, std::align_val_t(alignment), std::nothrow);
    if (data != nullptr) {
        std::memset(data, 0, bytes);
    }
    return data;
}

/* Gives back what allocate(bytes) gave; null is allowed. */
inline void release(void *data, std::size_t bytes) noexcept {
    if (data == nullptr) {
        return;
    }
#if defined(__linux__)
    if (bytes >= huge_page) {
        munmap(data, (bytes + huge_page - 1) / huge_page * huge_page);
        return;
    }
#endif
    (void)bytes;
    ::operator delete(data, std::align_val_t(alignment));
}

/* The owner of an allocation; false when it has none. */
class Buffer {
  public:
    Buffer() noexcept = default;
    explicit Buffer(std::size_t bytes) noexcept : data_(allocate(bytes)), bytes_(data_ == nullptr ? 0 : bytes) {}
    Buffer(Buffer &&other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Buffer &operator=(Buffer &&other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~Buffer() { release(data_, bytes_); }

    explicit operator bool() const noexcept { return data_ != nullptr; }
    std::size_t bytes() const noexcept { return bytes_; }

    /* The memory from byte `offset` on. */
    template <class T>
    T *at(std::size_t offset = 0) const noexcept {
        return reinterpret_cast<T *>(static_cast<char *>(data_) + offset);
    }

  private:
    void *data_ = nullptr;
    std::size_t bytes_ = 0;
};

}  // namespace meta500

#endif
