/* Data and weights of a program: read once into memory, given out cell by cell.
 *
 * Arrays are raw files, one sample after the other, each [channel][row][column], little-endian; their sizes and types
 * are in meta500_network.h; order.bin has the order of the samples in every epoch. Weights are 64-bit numbers, one
 * parameter after the other. Faults end the program with one line and status 2. */
#ifndef META500_DATA_H
#define META500_DATA_H

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
#include <unistd.h>

namespace meta500 {

enum class Type { float32, float64, int64, int32, uint8 };

/* An array of a part of the data. */
struct Array {
    const char *file;
    Type type;
    double scale;
    long samples, channels, rows, columns;
    long classes; /* labels are less than this; 0 for what is no label */
};

/* Into how many blocks pictures are cut. */
struct Blocks {
    long columns, rows;
};

inline long bytes_of(Type type) {
    switch (type) {
    case Type::float64:
    case Type::int64: return 8;
    case Type::float32:
    case Type::int32: return 4;
    default: return 1;
    }
}

inline void fail(const std::string &what) {
    std::fprintf(stderr, "error: %s\n", what.c_str());
    std::exit(2);
}

template <typename T> T bytes_as(const char *from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline double number(Type type, const char *from) {
    switch (type) {
    case Type::float64: return bytes_as<double>(from);
    case Type::float32: return double(bytes_as<float>(from));
    case Type::int64: return double(bytes_as<std::int64_t>(from));
    case Type::int32: return double(bytes_as<std::int32_t>(from));
    default: return double(bytes_as<std::uint8_t>(from));
    }
}

/* The contents of a file of exactly `size` bytes. */
inline std::vector<char> contents(const std::string &path, long size) {
    std::FILE *file = std::fopen(path.c_str(), "rb");
    if (!file) fail(path + ": cannot be opened; start the program in the folder that has it");
    std::vector<char> found(static_cast<std::size_t>(size));
    const std::size_t got = std::fread(found.data(), 1, found.size(), file);
    const bool more = std::fgetc(file) != EOF;
    std::fclose(file);
    if (got != found.size() || more)
        fail(path + ": has not the " + std::to_string(size) + " bytes that it must have");
    return found;
}

/* A part of the data, such as the training samples, in memory. */
class Part {
  public:
    void read(const Array *arrays, long count) {
        arrays_ = arrays;
        for (long a = 0; a < count; ++a) {
            const Array &array = arrays[a];
            const long size = array.samples * array.channels * array.rows * array.columns * bytes_of(array.type);
            data_.push_back(contents(array.file, size));
            for (long at = 0; array.classes && at < size; at += bytes_of(array.type)) {
                const double label = number(array.type, data_.back().data() + at);
                if (label < 0 || label >= double(array.classes))
                    fail(std::string(array.file) + ": has the label " + std::to_string(long(label)) + ", of " +
                         std::to_string(array.classes) + " classes");
            }
        }
    }

    /* The number at a channel and cell (i0, i1) of the block in which the position (x, y) is, from 0 to 1. */
    double at(long a, long sample, long channel, long i0, long i1, double x, double y, const Blocks &blocks) const {
        const Array &array = arrays_[a];
        const long row = long(y * double(blocks.rows)) * (array.rows / blocks.rows) + i1;
        const long column = long(x * double(blocks.columns)) * (array.columns / blocks.columns) + i0;
        const long index = ((sample * array.channels + channel) * array.rows + row) * array.columns + column;
        const double found = number(array.type, data_[std::size_t(a)].data() + index * bytes_of(array.type));
        /* Bytes with a scale stand for 32-bit numbers. */
        return array.type == Type::uint8 && array.scale != 1 ? double(float(found) * float(array.scale)) : found;
    }

  private:
    const Array *arrays_ = nullptr;
    std::vector<std::vector<char>> data_;
};

inline Part &training() {
    static Part part;
    return part;
}
inline Part &validation() {
    static Part part;
    return part;
}
/* The training samples in the order of all epochs, as 32-bit numbers. */
inline std::vector<char> &order() {
    static std::vector<char> samples;
    return samples;
}

}  // namespace meta500

/* `count` of `total` weights from the file, beginning with number `offset`. */
template <typename T> void meta500_load(const char *path, long offset, T *weights, long count, long total) {
    std::FILE *file = std::fopen(path, "rb");
    if (!file) meta500::fail(std::string(path) + ": cannot be opened; start the program in the folder that has it");
    std::vector<double> values(static_cast<std::size_t>(count));
    const bool good = std::fseek(file, 0, SEEK_END) == 0 && std::ftell(file) == total * long(sizeof(double)) &&
                      std::fseek(file, offset * long(sizeof(double)), SEEK_SET) == 0 &&
                      std::fread(values.data(), sizeof(double), values.size(), file) == values.size();
    std::fclose(file);
    if (!good) meta500::fail(std::string(path) + ": has not the " + std::to_string(total) + " weights of the network");
    for (long i = 0; i < count; ++i) weights[i] = T(values[std::size_t(i)]);
}

/* Appends weights to a file that takes the place of `path` when its last ones, up to `total`, are there. Every process
   writes a file of its own and moves it: their weights are the same. */
template <typename T> void meta500_save(const char *path, long offset, const T *weights, long count, long total) {
    const std::string part = std::string(path) + "." + std::to_string(long(getpid()));
    std::FILE *file = std::fopen(part.c_str(), offset ? "ab" : "wb");
    bool good = file != nullptr;
    for (long i = 0; good && i < count; ++i) {
        const double value = double(weights[i]);
        good = std::fwrite(&value, sizeof value, 1, file) == 1;
    }
    if (file) good = std::fclose(file) == 0 && good;
    if (good && offset + count == total) good = std::rename(part.c_str(), path) == 0;
    if (!good) meta500::fail(part + ": cannot be written");
}

#include "meta500_network.h"

#endif
