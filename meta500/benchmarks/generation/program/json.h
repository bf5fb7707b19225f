/* JSON (RFC 8259): a small parser for headers, and the writing of text. */
#ifndef META500_JSON_H
#define META500_JSON_H

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "files.h"

namespace meta500 {

/* A value of JSON. Objects keep their order; of a key that is given twice the first one counts. */
struct Json {
    enum Kind { null, boolean, number, text, list, object };
    Kind kind = null;
    double value = 0;  // of numbers and booleans
    std::string string;
    std::vector<Json> items;         // of lists
    std::vector<std::string> names;  // of objects
    std::vector<Json> values;

    const Json *find(const std::string &name) const {
        for (std::size_t i = 0; i < names.size(); ++i) {
            if (names[i] == name) {
                return &values[i];
            }
        }
        return nullptr;
    }

    /* An entry of this object, of a certain kind; `where` is for the message. */
    const Json &entry(const std::string &name, Kind wanted, const std::string &where) const {
        static const char *const words[] = {"null", "true or false", "a number", "a text", "a list", "an object"};
        const Json *found = find(name);
        if (found == nullptr || found->kind != wanted) {
            fail(where + ": '" + name + "' must be " + words[wanted]);
        }
        return *found;
    }

    /* This number as a whole one that is not negative. */
    long whole(const std::string &where) const {
        if (kind != number || !(value >= 0 && value <= 9007199254740992.0) || value != double(long(value))) {
            fail(where + " must be a whole number of at least 0");
        }
        return long(value);
    }
};

namespace detail {

class JsonReader {
  public:
    JsonReader(const char *begin, const char *end, const std::string &where)
        : begin_(begin), at_(begin), end_(end), where_(where) {}

    Json document() {
        Json found = value(0);
        space();
        if (at_ != end_) {
            wrong("something follows the end");
        }
        return found;
    }

  private:
    static constexpr int deepest = 64;
    const char *begin_, *at_, *end_;
    const std::string &where_;

    [[noreturn]] void wrong(const char *what) const {
        fail(where_ + ": is no JSON: " + what + " at byte " + std::to_string(at_ - begin_));
    }
    void space() {
        while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r')) {
            ++at_;
        }
    }
    char next() {
        space();
        if (at_ == end_) {
            wrong("it ends too early");
        }
        return *at_;
    }
    bool take(char wanted) {
        if (next() != wanted) {
            return false;
        }
        ++at_;
        return true;
    }
    bool word(const char *wanted) {
        const std::size_t length = std::strlen(wanted);
        if (std::size_t(end_ - at_) < length || std::strncmp(at_, wanted, length) != 0) {
            return false;
        }
        at_ += length;
        return true;
    }

    Json value(int depth) {
        if (depth > deepest) {
            wrong("it is nested too deep");
        }
        Json found;
        const char first = next();
        if (first == '{') {
            found.kind = Json::object;
            ++at_;
            while (!take('}')) {
                if (!found.names.empty() && !take(',')) {
                    wrong("',' or '}' is missing");
                }
                if (next() != '"') {
                    wrong("a name in quotes is missing");
                }
                found.names.push_back(text());
                if (!take(':')) {
                    wrong("':' is missing");
                }
                found.values.push_back(value(depth + 1));
            }
        } else if (first == '[') {
            found.kind = Json::list;
            ++at_;
            while (!take(']')) {
                if (!found.items.empty() && !take(',')) {
                    wrong("',' or ']' is missing");
                }
                found.items.push_back(value(depth + 1));
            }
        } else if (first == '"') {
            found.kind = Json::text;
            found.string = text();
        } else if (word("true")) {
            found.kind = Json::boolean;
            found.value = 1;
        } else if (word("false")) {
            found.kind = Json::boolean;
        } else if (!word("null")) {
            found.kind = Json::number;
            found.value = number();
        }
        return found;
    }

    double number() {
        const char *start = at_;
        while (at_ != end_ && *at_ != '\0' && std::strchr("+-.0123456789eE", *at_) != nullptr) {
            ++at_;
        }
        const std::string digits(start, at_);
        char *stop = nullptr;
        const double found = std::strtod(digits.c_str(), &stop);
        if (digits.empty() || *stop != '\0') {
            at_ = start;
            wrong("no value");
        }
        return found;
    }

    std::string text() {
        std::string found;
        for (++at_; at_ != end_ && *at_ != '"'; ++at_) {
            if (static_cast<unsigned char>(*at_) < 0x20) {
                wrong("a control character inside of a text");
            }
            if (*at_ != '\\') {
                found += *at_;
                continue;
            }
            if (++at_ == end_) {
                break;
            }
            static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
            if (*at_ == 'u') {
                utf8(found, escaped());
            } else if (const char *place = *at_ == '\0' ? nullptr : std::strchr(from, *at_)) {
                found += to[place - from];
            } else {
                wrong("an unknown escape");
            }
        }
        if (at_ == end_) {
            wrong("a quote is open");
        }
        ++at_;
        return found;
    }

    /* The four digits after \u; at_ is left on the last one. */
    unsigned four() {
        unsigned code = 0;
        for (int digit = 0; digit < 4; ++digit) {
            const char c = ++at_ < end_ ? *at_ : ' ';
            const int number = c >= '0' && c <= '9'   ? c - '0'
                               : c >= 'a' && c <= 'f' ? c - 'a' + 10
                               : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                      : -1;
            if (number < 0) {
                wrong("four hexadecimal digits are missing");
            }
            code = code * 16 + unsigned(number);
        }
        return code;
    }

    unsigned escaped() {
        const unsigned high = four();
        if (high < 0xD800 || high > 0xDBFF) {
            return high;
        }
        if (end_ - at_ < 3 || at_[1] != '\\' || at_[2] != 'u') {
            wrong("half of a surrogate pair is missing");
        }
        at_ += 2;
        const unsigned low = four();
        if (low < 0xDC00 || low > 0xDFFF) {
            wrong("half of a surrogate pair is missing");
        }
        return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    }

    static void utf8(std::string &to, unsigned code) {
        if (code < 0x80) {
            to += char(code);
        } else if (code < 0x800) {
            to += {char(0xC0 | code >> 6), char(0x80 | (code & 63))};
        } else if (code < 0x10000) {
            to += {char(0xE0 | code >> 12), char(0x80 | (code >> 6 & 63)), char(0x80 | (code & 63))};
        } else {
            to += {char(0xF0 | code >> 18), char(0x80 | (code >> 12 & 63)), char(0x80 | (code >> 6 & 63)),
                   char(0x80 | (code & 63))};
        }
    }
};

}  // namespace detail

/* The value of a text; `where` is for messages. */
inline Json parse_json(const char *begin, const char *end, const std::string &where) {
    return detail::JsonReader(begin, end, where).document();
}

/* A text in quotes. */
inline std::string quoted(const std::string &text) {
    std::string found = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            found += '\\';
            found += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char code[8];
            std::snprintf(code, sizeof code, "\\u%04x", unsigned(static_cast<unsigned char>(c)));
            found += code;
        } else {
            found += c;
        }
    }
    return found + '"';
}

/* A number with all its digits; null where it is not finite. */
inline std::string number(double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", value);
    return value - value == 0 ? text : "null";
}

}  // namespace meta500

#endif
