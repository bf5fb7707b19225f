/* Datasets in a folder: raw files with the header dataset.json, or .npy files in train/ and validation/. */
#ifndef META500_DATASET_H
#define META500_DATASET_H

#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "files.h"
#include "json.h"
#include "weights.h"

namespace meta500 {

inline constexpr char dataset_format[] = "meta500 dataset";

/* The samples of one input: elements of all of them, one after the other. */
struct Array {
    std::string path, dtype;  // dtype: float32, float64, int64, int32, uint8, bool
    bool scaled = false;      // uint8 that stands for byte * scale
    float scale = 1;
    std::vector<long> shape;  // of one sample
    long elements = 1;        // of one sample
    const char *data = nullptr;
    Mapping file;

    explicit Array(const std::string &place) : path(place), file(place) {}

    std::size_t element_bytes() const {
        return dtype == "float64" || dtype == "int64" ? 8 : dtype == "uint8" || dtype == "bool" ? 1 : 4;
    }
};

/* "train" or "validation". */
struct Part {
    long samples = 0;
    std::map<std::string, Array> arrays;
};

namespace detail {

inline void set_shape(Array &array, const std::vector<long> &shape, long samples, std::size_t header,
                      const std::string &where) {
    array.shape = shape;
    for (const long size : shape) {
        if (size < 1 || __builtin_mul_overflow(array.elements, size, &array.elements)) {
            fail(where + ": has an empty or too large shape");
        }
    }
    std::size_t bytes = 0;
    if (samples < 1 || __builtin_mul_overflow(std::size_t(samples) * array.element_bytes(),
                                              std::size_t(array.elements), &bytes)) {
        fail(where + ": has no samples or too many");
    }
    array.data = array.file.data() + header;
    if (array.file.size() != header + bytes) {
        fail(array.path + ": has " + std::to_string(array.file.size()) + " bytes, " + std::to_string(header + bytes) +
             " are expected: it is damaged or not complete");
    }
}

inline void check_dtype(const std::string &dtype, const std::string &where) {
    for (const char *known : {"float32", "float64", "int64", "int32", "uint8", "bool"}) {
        if (dtype == known) {
            return;
        }
    }
    fail(where + ": has elements of type '" + dtype +
         "'; this program reads float32, float64, int64, int32, uint8 and bool");
}

inline Part raw_part(const std::string &folder, const Json &entry, const std::string &where) {
    Part part;
    part.samples = entry.entry("samples", Json::number, where).whole(where + ": 'samples'");
    const Json &arrays = entry.entry("arrays", Json::object, where);
    for (std::size_t i = 0; i < arrays.names.size(); ++i) {
        const Json &found = arrays.values[i];
        const std::string here = where + ", '" + arrays.names[i] + "'";
        Array array(folder + "/" + found.entry("file", Json::text, here).string);
        array.dtype = found.entry("dtype", Json::text, here).string;
        check_dtype(array.dtype, here);
        if (found.find("scale") != nullptr) {
            array.scaled = true;
            array.scale = static_cast<float>(found.entry("scale", Json::number, here).value);
            if (array.dtype != "uint8") {
                fail(here + ": only uint8 has a 'scale'");
            }
        }
        std::vector<long> shape;
        for (const Json &size : found.entry("shape", Json::list, here).items) {
            shape.push_back(size.whole(here + ": 'shape'"));
        }
        set_shape(array, shape, part.samples, 0, here);
        const std::string crc = hex(crc32(array.file.data(), array.file.size()));
        const std::string &stated = found.entry("crc32", Json::text, here).string;
        if (crc != stated) {
            fail(array.path + ": is damaged: its CRC-32 is " + crc + ", its header says " + stated);
        }
        part.arrays.emplace(arrays.names[i], std::move(array));
    }
    return part;
}

/* An .npy file: magic, version, length of the header, the header (a Python dictionary), the elements. */
inline long read_npy(Array &array) {
    const std::string &path = array.path;
    const char *data = array.file.data();
    const std::size_t size = array.file.size();
    if (size < 12 || std::memcmp(data, "\x93NUMPY", 6) != 0) {
        fail(path + ": is no .npy file");
    }
    const auto byte = [&](int i) { return std::size_t(static_cast<unsigned char>(data[i])); };
    const bool first = byte(6) == 1;
    const std::size_t begin = first ? 10 : 12;
    const std::size_t length = byte(8) | byte(9) << 8 | (first ? 0 : byte(10) << 16 | byte(11) << 24);
    if (length > size - begin) {
        fail(path + ": is damaged or not complete");
    }
    const std::string header(data + begin, length);
    const auto after = [&](const std::string &key) {
        const std::size_t found = header.find("'" + key + "':");
        if (found == std::string::npos) {
            fail(path + ": its header has no '" + key + "'");
        }
        return header.find_first_not_of(' ', found + key.size() + 3);
    };
    const std::size_t order = after("fortran_order"), kind = after("descr"), open = after("shape");
    if (header.compare(order, 5, "False") != 0) {
        fail(path + ": is in Fortran order; write it in C order");
    }
    const std::string code = header.compare(kind, 1, "'") == 0 ? header.substr(kind + 1, header.find('\'', kind + 1) - kind - 1)
                                                               : "a structure";
    static const std::map<std::string, std::string> codes = {{"<f4", "float32"}, {"<f8", "float64"}, {"<i8", "int64"},
                                                             {"<i4", "int32"},   {"|u1", "uint8"},   {"|b1", "bool"}};
    const auto found = codes.find(code);
    array.dtype = found == codes.end() ? code : found->second;
    check_dtype(array.dtype, path);
    std::vector<long> shape;
    std::size_t at = open + 1;
    const std::size_t close = header.find(')', open);
    if (header.compare(open, 1, "(") != 0 || close == std::string::npos) {
        fail(path + ": its header has no shape");
    }
    while ((at = header.find_first_of("0123456789", at)) < close) {
        char *stop = nullptr;
        shape.push_back(std::strtol(header.c_str() + at, &stop, 10));
        at = std::size_t(stop - header.c_str());
    }
    if (shape.empty()) {
        fail(path + ": is a single number; its first dimension must be the samples");
    }
    const long samples = shape.front();
    shape.erase(shape.begin());
    set_shape(array, shape, samples, begin + length, path);
    return samples;
}

inline Part npy_part(const std::string &folder, const std::vector<std::string> &names) {
    Part part;
    for (const std::string &name : names) {
        Array array(folder + "/" + name + ".npy");
        const long samples = read_npy(array);
        if (part.samples != 0 && samples != part.samples) {
            fail(array.path + ": has " + std::to_string(samples) + " samples, the other files have " +
                 std::to_string(part.samples));
        }
        part.samples = samples;
        part.arrays.emplace(name, std::move(array));
    }
    return part;
}

}  // namespace detail

/* The parts of a folder by name; `names` are the arrays that are needed. */
inline std::map<std::string, Part> read_dataset(const std::string &folder, const std::vector<std::string> &names) {
    if (!is_folder(folder)) {
        fail(folder + ": there is no such folder of data");
    }
    std::map<std::string, Part> parts;
    const std::string path = folder + "/dataset.json";
    if (is_file(path)) {
        const Mapping file(path);
        const Json header = parse_json(file.data(), file.data() + file.size(), path);
        const Json *format = header.find("format"), *version = header.find("version");
        if (format == nullptr || format->string != dataset_format || version == nullptr || version->value != 1) {
            fail(path + ": is no header of data of version 1");
        }
        const Json &found = header.entry("parts", Json::object, path);
        for (std::size_t i = 0; i < found.names.size(); ++i) {
            if (found.names[i] == "train" || found.names[i] == "validation") {
                parts[found.names[i]] =
                    detail::raw_part(folder, found.values[i], path + ": part '" + found.names[i] + "'");
            }
        }
    } else {
        for (const char *name : {"train", "validation"}) {
            if (is_folder(folder + "/" + name)) {
                parts[name] = detail::npy_part(folder + "/" + name, names);
            }
        }
    }
    if (parts.count("train") == 0) {
        fail(folder + ": has no training data: neither dataset.json with a part 'train' nor train/NAME.npy");
    }
    for (const auto &[name, part] : parts) {
        for (const std::string &wanted : names) {
            if (part.arrays.count(wanted) == 0) {
                fail(folder + ": the " + name + " data have no '" + wanted + "', which this network needs");
            }
        }
    }
    return parts;
}

/* Whether elements of an array can be read as numbers of type T: floating point of each other (rounded to the
 * nearest) and of scaled bytes, whole numbers of those that are not wider. */
template <class T>
bool readable(const Array &array) {
    const std::string &dtype = array.dtype;
    if (std::is_floating_point<T>::value) {
        return array.scaled || dtype == "float32" || dtype == "float64";
    }
    if (array.scaled || dtype == "float32" || dtype == "float64") {
        return false;
    }
    return sizeof(T) == 1 ? dtype == "bool" : dtype != "bool" && array.element_bytes() <= sizeof(T);
}

namespace detail {

template <class T, class From>
void gather_as(const Array &array, const long *indices, long count, T *to) {
    for (long n = 0; n < count; ++n) {
        const char *from = array.data + std::size_t(indices[n]) * std::size_t(array.elements) * sizeof(From);
        for (long i = 0; i < array.elements; ++i) {
            From value;
            std::memcpy(&value, from + std::size_t(i) * sizeof(From), sizeof(From));
            *to++ = std::is_same<From, unsigned char>::value && array.scaled ? T(float(value) * array.scale) : T(value);
        }
    }
}

}  // namespace detail

/* Samples by their numbers, one after the other, as numbers of type T; see readable(). */
template <class T>
void gather(const Array &array, const long *indices, long count, T *to) {
    const std::string &dtype = array.dtype;
    if (dtype == "float32") {
        detail::gather_as<T, float>(array, indices, count, to);
    } else if (dtype == "float64") {
        detail::gather_as<T, double>(array, indices, count, to);
    } else if (dtype == "int64") {
        detail::gather_as<T, std::int64_t>(array, indices, count, to);
    } else if (dtype == "int32") {
        detail::gather_as<T, std::int32_t>(array, indices, count, to);
    } else {
        detail::gather_as<T, unsigned char>(array, indices, count, to);
    }
}

}  // namespace meta500

#endif
