/* A program of the generated code with its batch, its results and its pointers. */
#ifndef META500_RUNNER_H
#define META500_RUNNER_H

#include <cmath>
#include <string>
#include <vector>

#include "dataset.h"
#include "state.h"
#include "tables.h"

namespace meta500 {

/* The numbers that an optimizer takes at a step, counted from 0. */
inline double setting(const std::string &name, long step) {
    if (name == "rate") {
        return config.learning_rate;
    }
    if (name == "momentum") {
        return config.momentum;
    }
    if (name == "beta1") {
        return config.beta1;
    }
    if (name == "beta2") {
        return config.beta2;
    }
    if (name == "share1") {
        return 1 - config.beta1;
    }
    if (name == "share2") {
        return 1 - config.beta2;
    }
    if (name == "weight_decay") {
        return config.weight_decay;
    }
    if (name == "decay") {
        return config.learning_rate * config.weight_decay;
    }
    // The bias corrections of Adam (Kingma and Ba, 2015, end of section 2).
    const double t = double(step + 1), correction = std::sqrt(1 - std::pow(config.beta2, t));
    if (name == "epsilon") {
        return config.epsilon * correction;
    }
    if (name == "step") {
        return config.learning_rate * correction / (1 - std::pow(config.beta1, t));
    }
    fail("the optimizer's '" + name + "' is not known");
}

class Runner {
  public:
    Runner(const Program &program, State &state, int threads) : program_(program), state_(state) {
        for (int i = 0; i < program.external_count; ++i) {
            const External &tensor = program.externals[i];
            void *place = nullptr;
            if (tensor.role == Role::parameters) {
                place = state.parameters.at<void>();
            } else if (tensor.role == Role::slot) {
                place = state.slots.at(tensor.name).at<void>();
            } else if (tensor.role == Role::statistic) {
                place = state.statistics.at(tensor.name).at<void>();
            } else if (tensor.role == Role::constant) {
                place = const_cast<void *>(tensor.constant);  // it is only read
            } else {
                own_.push_back(zeros(tensor.elements, bytes(tensor.type), std::string("'") + tensor.name + "'"));
                place = own_.back().at<void>();
            }
            pointers_.push_back(place);
        }
        program.threads(threads);
        instance_ = program.open();
        if (instance_ == nullptr) {
            fail("memory does not suffice: the network needs " + std::to_string(program.bytes >> 20) +
                 " MiB; use a smaller batch or fewer threads");
        }
    }
    Runner(const Runner &) = delete;
    Runner &operator=(const Runner &) = delete;
    ~Runner() { program_.close(instance_); }

    /* One run on samples of a part: `batch` of them, by their numbers. */
    void run(const Part &part, const long *samples) {
        for (int i = 0; i < program_.external_count; ++i) {
            const External &tensor = program_.externals[i];
            if (tensor.role == Role::input) {
                load(tensor, part, samples, pointers_[std::size_t(i)]);
            } else if (tensor.role == Role::setting) {
                *static_cast<real *>(pointers_[std::size_t(i)]) = real(setting(tensor.name, state_.step));
            } else if (tensor.role == Role::random) {
                auto *random = static_cast<std::int64_t *>(pointers_[std::size_t(i)]);
                random[0] = std::int64_t(state_.seed);
                random[1] = state_.step;
            }
        }
        const int fault = program_.run(instance_, pointers_.data());
        if (fault != 0) {
            fail(program_.faults[fault - 1]);
        }
        for (int i = 0; i < program_.update_count; ++i) {
            const Update &update = program_.updates[i];
            Buffer &statistic = state_.statistics.at(update.statistic);
            std::memcpy(statistic.at<char>(), pointers_[std::size_t(update.external)], statistic.bytes());
        }
    }

    double loss() const { return double(*static_cast<const real *>(pointers_[std::size_t(program_.loss)])); }

    /* How many labels of the last run there were, and for how many the largest score was theirs. */
    void count(long &labels, long &right) const {
        const real *scores = static_cast<const real *>(pointers_[std::size_t(program_.scores)]);
        for (int i = 0; i < program_.external_count; ++i) {
            const External &tensor = program_.externals[i];
            if (tensor.role == Role::input && std::string(tensor.name) == config.inputs[config.label].name) {
                const auto *label = static_cast<const std::int64_t *>(pointers_[std::size_t(i)]);
                for (long n = 0; n < program_.batch; ++n) {
                    for (long p = 0; p < config.pixels; ++p, ++label) {
                        if (config.ignores && *label == config.ignored) {
                            continue;
                        }
                        ++labels;
                        right += best(scores + n * config.classes * config.pixels + p) == *label;
                    }
                }
            }
        }
    }

    static std::size_t bytes(Type type) {
        return type == Type::real ? sizeof(real) : type == Type::int64 ? 8 : type == Type::int32 ? 4 : 1;
    }

  private:
    const Program &program_;
    State &state_;
    std::vector<Buffer> own_;
    std::vector<void *> pointers_;
    void *instance_ = nullptr;

    void load(const External &tensor, const Part &part, const long *samples, void *to) const {
        for (int i = 0; i < config.input_count; ++i) {
            const Input &input = config.inputs[i];
            if (std::string(input.name) == tensor.name) {
                const Array &array = part.arrays.at(input.array);
                if (input.type == Type::real) {
                    gather(array, samples, program_.batch, static_cast<real *>(to));
                } else if (input.type == Type::int64) {
                    gather(array, samples, program_.batch, static_cast<std::int64_t *>(to));
                } else if (input.type == Type::int32) {
                    gather(array, samples, program_.batch, static_cast<std::int32_t *>(to));
                } else {
                    gather(array, samples, program_.batch, static_cast<unsigned char *>(to));
                }
            }
        }
    }

    /* The class with the largest score, the first of several. */
    static std::int64_t best(const real *scores) {
        long found = 0;
        for (long c = 1; c < config.classes; ++c) {
            if (scores[c * config.pixels] > scores[found * config.pixels]) {
                found = c;
            }
        }
        return found;
    }
};

/* Whether a part has what the network takes. */
inline void check_part(const Part &part, const std::string &name) {
    for (int i = 0; i < config.input_count; ++i) {
        const Input &input = config.inputs[i];
        const Array &array = part.arrays.at(input.array);
        const std::vector<long> wanted(input.shape, input.shape + input.rank);
        if (array.shape != wanted) {
            fail(array.path + ": a sample of the " + name + " data is " + shape_text(array.shape) +
                 ", this network was generated for " + shape_text(wanted));
        }
        const bool good = input.type == Type::real    ? readable<real>(array)
                          : input.type == Type::int64 ? readable<std::int64_t>(array)
                          : input.type == Type::int32 ? readable<std::int32_t>(array)
                                                      : readable<unsigned char>(array);
        if (!good) {
            static const char *const types[] = {"floating-point numbers", "int64", "int32", "bool"};
            fail(array.path + ": holds " + array.dtype + ", the network's input '" + input.name + "' takes " +
                 types[int(input.type)] +
                 (array.dtype == "uint8" && input.type == Type::real ? " (uint8 needs a 'scale' in dataset.json)" : ""));
        }
    }
}

}  // namespace meta500

#endif
