/* The command line of the program. */
#ifndef META500_OPTIONS_H
#define META500_OPTIONS_H

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "files.h"
#include "tables.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace meta500 {

struct Options {
    std::string data, weights, out = "weights.safetensors";
    long epochs;
    int threads;
    std::uint64_t seed;
    bool seeded = false, restart = false, help = false;
};

inline void print_help(const char *program) {
    std::printf(
        "Trains the network '%s' with %s, batch %ld.\n\n"
        "usage: %s [options]\n"
        "  --data DIR      dataset.json with its files, or train/NAME.npy and validation/NAME.npy\n"
        "                  [data/ beside this program or above it]\n"
        "  --epochs N      train to the end of this epoch, counted from the beginning [%ld]\n"
        "  --threads N     1 to %d [%d]\n"
        "  --weights FILE  go on from these weights [initial.safetensors beside this program or above it]\n"
        "  --restart       take parameters and statistics only from --weights: epoch 0, fresh optimizer\n"
        "  --out FILE      where the weights are saved after every epoch [weights.safetensors]\n"
        "  --seed S        of the shuffling [%llu, or that of the weights]\n"
        "Prints JSON, one object per line. Exit code: 0 done, 1 failed, 2 wrong options.\n",
        config.network, config.optimizer, config.training->batch, program, config.epochs, config.threads,
        config.threads, static_cast<unsigned long long>(config.seed));
}

/* A command line that can't be understood. */
struct Usage : std::runtime_error {
    using std::runtime_error::runtime_error;
};

namespace detail {

inline std::uint64_t whole(const std::string &option, const std::string &text, std::uint64_t low, std::uint64_t high) {
    errno = 0;
    char *stop = nullptr;
    const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    const std::uint64_t value = digits ? std::strtoull(text.c_str(), &stop, 10) : 0;
    if (!digits || errno != 0 || value < low || value > high) {
        throw Usage(option + " must be a whole number from " + std::to_string(low) + " to " + std::to_string(high) +
                    ", not '" + text + "'");
    }
    return value;
}

}  // namespace detail

inline Options parse_options(int count, char **words) {
    Options found;
    found.epochs = config.epochs;
    found.threads = config.threads;
    found.seed = config.seed;
#if !defined(_OPENMP)
    found.threads = 1;
#endif
    for (int i = 1; i < count; ++i) {
        std::string option = words[i], value;
        if (option == "--help" || option == "-h") {
            found.help = true;
            continue;
        }
        if (option == "--restart") {
            found.restart = true;
            continue;
        }
        const std::size_t equals = option.find('=');
        const bool joined = equals != std::string::npos;
        if (joined) {
            value = option.substr(equals + 1);
            option.resize(equals);
        }
        bool known = false;
        for (const char *name : {"--data", "--weights", "--out", "--epochs", "--threads", "--seed"}) {
            known = known || option == name;
        }
        if (!known) {
            throw Usage("unknown option '" + option + "'; --help lists those that there are");
        }
        if (!joined) {
            if (i + 1 == count) {
                throw Usage(option + " needs a value");
            }
            value = words[++i];
        }
        if (value.empty()) {
            throw Usage(option + " needs a value");
        }
        if (option == "--data") {
            found.data = value;
        } else if (option == "--weights") {
            found.weights = value;
        } else if (option == "--out") {
            found.out = value;
        } else if (option == "--epochs") {
            found.epochs = long(detail::whole(option, value, 1, 1000000000));
        } else if (option == "--threads") {
            found.threads = int(detail::whole(option, value, 1, std::uint64_t(config.threads)));
        } else {
            found.seed = detail::whole(option, value, 0, INT64_MAX);
            found.seeded = true;
        }
    }
#if !defined(_OPENMP)
    if (found.threads != 1) {
        throw Usage("--threads " + std::to_string(found.threads) + ": this program was compiled without OpenMP and has one thread");
    }
#endif
    return found;
}

}  // namespace meta500

#endif
