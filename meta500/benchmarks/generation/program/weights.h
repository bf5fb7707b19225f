/* Weights in the safetensors format: the length of the header (8 bytes, little-endian), the header (JSON: name ->
 * dtype, shape, data_offsets; "__metadata__" -> texts), then the data of all tensors, without gaps.
 *
 * Our files have in their metadata "format": "meta500 weights" and "crc32": the CRC-32 of the whole file, in eight
 * hexadecimal digits, computed with zeros in the place of these digits. Files of others need neither. */
#ifndef META500_WEIGHTS_H
#define META500_WEIGHTS_H

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "files.h"
#include "json.h"

namespace meta500 {

inline constexpr char weights_format[] = "meta500 weights";

/* "3 x 4"; "a number" for a tensor without dimensions. */
inline std::string shape_text(const std::vector<long> &shape) {
    std::string text;
    for (const long size : shape) {
        text += (text.empty() ? "" : " x ") + std::to_string(size);
    }
    return shape.empty() ? "a number" : text;
}

/* A tensor of a file that is read or written. */
struct StoredTensor {
    std::string name, dtype;  // "F32" or "F64"
    std::vector<long> shape;
    const char *data;
    std::size_t bytes;
};

/* A file of weights, checked as a whole when it is opened. */
class Weights {
  public:
    explicit Weights(const std::string &path) : path_(path), file_(path) {
        const std::size_t size = file_.size();
        std::uint64_t header = 0;
        if (size >= 8) {
            std::memcpy(&header, file_.data(), 8);
        }
        if (size < 8 || header > size - 8) {
            fail(path + ": is no complete file of weights");
        }
        const char *begin = file_.data() + 8, *data = begin + header;
        const Json found = parse_json(begin, data, path);
        if (found.kind != Json::object) {
            fail(path + ": is no file of weights");
        }
        std::size_t end = 0;
        for (std::size_t i = 0; i < found.names.size(); ++i) {
            const Json &entry = found.values[i];
            const std::string where = path + ": '" + found.names[i] + "'";
            if (entry.kind != Json::object) {
                fail(where + " must be an object");
            }
            if (found.names[i] == "__metadata__") {
                for (std::size_t k = 0; k < entry.names.size(); ++k) {
                    metadata_[entry.names[k]] = entry.values[k].string;
                }
                continue;
            }
            end += add(found.names[i], entry, data, size - 8 - header, where);
        }
        if (end != size - 8 - header) {
            fail(path + ": is damaged: its tensors have " + std::to_string(end) + " bytes, the file has " +
                 std::to_string(size - 8 - header));
        }
        check(begin, data);
    }

    const std::string &path() const { return path_; }

    /* A text of the metadata, "" if there is none of this name. */
    std::string metadata(const std::string &name) const {
        const auto found = metadata_.find(name);
        return found == metadata_.end() ? "" : found->second;
    }

    /* A tensor, or null. */
    const StoredTensor *find(const std::string &name) const {
        const auto found = tensors_.find(name);
        return found == tensors_.end() ? nullptr : &found->second;
    }

    /* A tensor of this type and shape. */
    const StoredTensor &get(const std::string &name, const std::string &dtype, const std::vector<long> &shape) const {
        const StoredTensor *found = find(name);
        if (found == nullptr) {
            fail(path_ + ": has no tensor '" + name + "', which this network needs");
        }
        if (found->dtype != dtype || found->shape != shape) {
            fail(path_ + ": '" + name + "' is " + found->dtype + " " + shape_text(found->shape) +
                 ", this network needs " + dtype + " " + shape_text(shape));
        }
        return *found;
    }

    const std::map<std::string, StoredTensor> &tensors() const { return tensors_; }

  private:
    std::string path_;
    Mapping file_;
    std::map<std::string, StoredTensor> tensors_;
    std::map<std::string, std::string> metadata_;

    std::size_t add(const std::string &name, const Json &entry, const char *data, std::size_t size,
                    const std::string &where) {
        StoredTensor tensor{name, entry.entry("dtype", Json::text, where).string, {}, nullptr, 0};
        std::size_t elements = 1;
        for (const Json &dimension : entry.entry("shape", Json::list, where).items) {
            tensor.shape.push_back(dimension.whole(where + ": its shape"));
            if (__builtin_mul_overflow(elements, std::size_t(tensor.shape.back()), &elements)) {
                fail(where + ": its shape is too large");
            }
        }
        const std::vector<Json> &offsets = entry.entry("data_offsets", Json::list, where).items;
        if (offsets.size() != 2) {
            fail(where + ": 'data_offsets' must have two numbers");
        }
        const std::size_t begin = std::size_t(offsets[0].whole(where + ": its offset"));
        const std::size_t end = std::size_t(offsets[1].whole(where + ": its offset"));
        if (begin > end || end > size) {
            fail(where + ": lies outside of the file: the file is damaged or not complete");
        }
        const std::size_t each = tensor.dtype == "F32" ? 4 : tensor.dtype == "F64" ? 8 : 0;
        if (each != 0 && (elements > size || elements * each != end - begin)) {
            fail(where + ": has " + std::to_string(end - begin) + " bytes, which do not fit its shape");
        }
        tensor.data = data + begin;
        tensor.bytes = end - begin;
        tensors_[name] = tensor;
        return tensor.bytes;
    }

    void check(const char *begin, const char *data) const {
        const std::string stated = metadata("crc32");
        if (stated.empty()) {
            if (metadata("format") == weights_format) {
                fail(path_ + ": is damaged: it has no checksum");
            }
            return;
        }
        const std::string header(begin, data), key = "\"crc32\":\"";
        const std::size_t place = header.find(key);
        std::uint32_t crc = 0;
        if (place != std::string::npos && place + key.size() + 8 <= header.size()) {
            const std::size_t digits = 8 + place + key.size();  // from the beginning of the file
            crc = crc32(file_.data(), digits);
            crc = crc32("00000000", 8, crc);
            crc = crc32(file_.data() + digits + 8, file_.size() - digits - 8, crc);
        }
        if (hex(crc) != stated) {
            fail(path_ + ": is damaged: its checksum is " + hex(crc) + ", it says " + stated);
        }
    }
};

/* Writes a file of weights. */
inline void write_weights(const std::string &path, const std::vector<StoredTensor> &tensors,
                          const std::vector<std::pair<std::string, std::string>> &metadata) {
    std::string header = "{\"__metadata__\":{\"crc32\":\"00000000\",\"format\":" + quoted(weights_format);
    for (const auto &[name, text] : metadata) {
        header += "," + quoted(name) + ":" + quoted(text);
    }
    header += "}";
    std::size_t offset = 0;
    for (const StoredTensor &tensor : tensors) {
        header += "," + quoted(tensor.name) + ":{\"dtype\":" + quoted(tensor.dtype) + ",\"shape\":[";
        for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
            header += (i == 0 ? "" : ",") + std::to_string(tensor.shape[i]);
        }
        header += "],\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(offset + tensor.bytes) + "]}";
        offset += tensor.bytes;
    }
    header += "}";
    header.append((8 - header.size() % 8) % 8, ' ');  // the data begin at a multiple of 8 bytes
    const std::uint64_t length = header.size();
    std::uint32_t crc = crc32(&length, 8);
    crc = crc32(header.data(), header.size(), crc);
    for (const StoredTensor &tensor : tensors) {
        crc = crc32(tensor.data, tensor.bytes, crc);
    }
    header.replace(header.find("00000000"), 8, hex(crc));
    NewFile file(path);
    file.write(&length, 8);
    file.write(header.data(), header.size());
    for (const StoredTensor &tensor : tensors) {
        file.write(tensor.data, tensor.bytes);
    }
    file.finish();
}

}  // namespace meta500

#endif
