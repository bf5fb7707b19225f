/* The program's main: answers orders, lines of JSON on standard input, with lines of JSON.

   {"order": "load", "weights": FILE, "inputs": FILE, "training": BOOL, "threads": N,
    "rate": LEARNING RATE}                name and version of the library
   {"order": "infer", "file": FILE}       one inference; writes the logits; their number
   {"order": "train", "count": N}         N training steps; the loss of the last one
   {"order": "steps", "count": N}         N steps of what was loaded; seconds of all together
   {"order": "write", "gradients": BOOL, "file": FILE}   the trained weights or their gradients; how many
   {"order": "memory"}                    resident bytes: now, and the most so far

   Answers are {"result": ...} or {"error": MESSAGE}. Files are the arrays one behind the other, native endian. */

#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#ifdef __linux__
#include <csignal>
#include <sys/prctl.h>
#endif

#include "files.h"
#include "json.h"
#include "program.h"

namespace {

using meta500::Array;
using meta500::Json;
using meta500::fail;

class Orders {
  public:
    std::string answer(const std::string &line) {
        const Json order = meta500::parse_json(line.data(), line.data() + line.size(), "order");
        const std::string name = text(order, "order");
        if (name == "memory") {
            return "{\"resident\": " + std::to_string(memory("VmRSS:")) + ", \"peak\": " +
                   std::to_string(memory("VmHWM:")) + "}";
        }
        if (name == "load") {
            return load(order);
        }
        if (program_ == nullptr) {
            fail("'" + name + "' before 'load'");
        }
        if (name == "infer") {
            require(false, name);
            program_->infer();
            write(text(order, "file"), {{program_->logits(), program_->logits_count()}});
            return std::to_string(program_->logits_count());
        }
        if (name == "train") {
            require(true, name);
            float loss = std::numeric_limits<float>::quiet_NaN();
            for (long left = count(order); left > 0; --left) {
                loss = program_->train(rate_);
            }
            return meta500::number(loss);
        }
        if (name == "steps") {
            return meta500::number(steps(count(order)));
        }
        if (name == "write") {
            return weights(order.entry("gradients", Json::boolean, "order").value != 0, text(order, "file"));
        }
        fail("unknown order '" + name + "'");
    }

  private:
    struct Part {
        const void *data;
        std::size_t count;
    };
    std::unique_ptr<meta500::Program> program_;
    bool training_ = false;
    float rate_ = 0;

    static std::string text(const Json &order, const char *name) {
        return order.entry(name, Json::text, "order").string;
    }
    static long count(const Json &order) {
        return order.entry("count", Json::number, "order").whole("order: 'count'");
    }

    void require(bool training, const std::string &order) const {
        if (training != training_) {
            fail("'" + order + "': the program was loaded for " + (training_ ? "training" : "inference"));
        }
    }

    std::string load(const Json &order) {
        if (program_ != nullptr) {
            fail("'load' is given once");
        }
        const long threads = order.entry("threads", Json::number, "order").whole("order: 'threads'");
        training_ = order.entry("training", Json::boolean, "order").value != 0;
        rate_ = float(order.entry("rate", Json::number, "order").value);
        auto program = meta500::make_program();
        read(text(order, "weights"), program->weights);
        read(text(order, "inputs"), program->inputs);
        program->prepare(training_, int(threads));
        program_ = std::move(program);
        return meta500::quoted(program_->library());
    }

    double steps(long count) {
        const auto begin = std::chrono::steady_clock::now();
        for (long left = count; left > 0; --left) {
            if (training_) {
                program_->train(rate_);
            } else {
                program_->infer();
            }
        }
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }

    std::string weights(bool gradients, const std::string &path) {
        std::vector<std::vector<float>> values;
        std::vector<Part> parts;
        for (std::size_t i = 0; i < program_->weights.size(); ++i) {
            if (program_->weights[i].trained) {
                values.push_back(program_->weight(i, gradients));
            }
        }
        for (const auto &value : values) {
            parts.push_back({value.data(), value.size()});
        }
        write(path, parts);
        return std::to_string(parts.size());
    }

    static void read(const std::string &path, std::vector<Array> &arrays) {
        std::ifstream file(path, std::ios::binary);
        for (Array &array : arrays) {
            file.read(static_cast<char *>(array.memory.get()), std::streamsize(array.bytes()));
        }
        if (!file || file.peek() != std::ifstream::traits_type::eof()) {
            fail(path + ": does not hold the arrays of this network");
        }
    }

    static void write(const std::string &path, const std::vector<Part> &parts) {
        std::ofstream file(path, std::ios::binary | std::ios::trunc);
        for (const Part &part : parts) {
            file.write(static_cast<const char *>(part.data), std::streamsize(part.count * sizeof(float)));
        }
        file.close();
        if (!file) {
            fail(path + ": cannot be written");
        }
    }

    /* Bytes of a line of /proc/self/status; 0 where there is none. */
    static long memory(const char *key) {
        std::ifstream status("/proc/self/status");
        for (std::string line; std::getline(status, line);) {
            if (line.rfind(key, 0) == 0) {
                return std::atol(line.c_str() + std::strlen(key)) * 1024;
            }
        }
        return 0;
    }
};

}  // namespace

int main() {
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // end with the process that gives the orders
#endif
    Orders orders;
    for (std::string line; std::getline(std::cin, line);) {
        std::string answer;
        try {
            answer = "{\"result\": " + orders.answer(line) + "}";
        } catch (const std::exception &error) {
            answer = "{\"error\": " + meta500::quoted(error.what()) + "}";
        }
        std::cout << answer << std::endl;
    }
    return 0;
}
