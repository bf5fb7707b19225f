/* Trains the generated network on data from files: see README.md beside this file. */
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "dataset.h"
#include "options.h"
#include "runner.h"
#include "shuffle.h"
#include "state.h"
#include "tables.h"

namespace {

using namespace meta500;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/* One line on standard output, at once. */
void print(const std::string &line) {
    if (std::printf("%s\n", line.c_str()) < 0 || std::fflush(stdout) != 0) {
        fail("standard output cannot be written: " + reason());
    }
}

/* A file or folder of this name beside the program, or one folder above it (build folders are inside). */
std::string beside(const char *program, const std::string &name, const char *option) {
    std::string folder(program);
    char link[4096];
    const ssize_t length = readlink("/proc/self/exe", link, sizeof link - 1);
    if (length > 0) {
        folder.assign(link, std::size_t(length));
    }
    const std::size_t slash = folder.rfind('/');
    folder = slash == std::string::npos ? "." : folder.substr(0, slash);
    for (const std::string &place : {folder + "/" + name, folder + "/../" + name}) {
        if (is_file(place) || is_folder(place)) {
            return place;
        }
    }
    fail("there is no " + name + " in " + folder + " or above it; name it with " + option);
}

struct Validation {
    double loss = 0, accuracy = 0;
    bool scored = false;
    long samples = 0;
};

/* Mean loss and accuracy: whole batches, then what is left one by one (left out where the batch is fixed). */
Validation validate(const Part &part, Runner &whole, Runner *single) {
    Validation found;
    long labels = 0, right = 0;
    std::vector<long> numbers(std::size_t(config.inference->batch));
    const auto add = [&](Runner &runner, long batch) {
        std::iota(numbers.begin(), numbers.begin() + batch, found.samples);
        runner.run(part, numbers.data());
        found.loss += runner.loss() * double(batch);
        found.samples += batch;
        if (config.label >= 0) {
            runner.count(labels, right);
        }
    };
    while (found.samples + config.inference->batch <= part.samples) {
        add(whole, config.inference->batch);
    }
    while (single != nullptr && found.samples < part.samples) {
        add(*single, 1);
    }
    found.loss /= double(std::max(found.samples, 1L));
    found.scored = labels > 0;
    found.accuracy = found.scored ? double(right) / double(labels) : 0;
    return found;
}

void train(const Options &options, const char *program) {
    State state = new_state();
    const Weights weights(options.weights.empty() ? beside(program, "initial.safetensors", "--weights")
                                                  : options.weights);
    state.seed = options.seed;
    read_state(state, weights, options.restart);
    if (options.seeded) {
        state.seed = options.seed;
    }
    if (state.epoch >= options.epochs) {
        fail(weights.path() + ": has been trained for " + std::to_string(state.epoch) +
             " epochs; give --epochs a larger number");
    }
    std::vector<std::string> names;
    for (int i = 0; i < config.input_count; ++i) {
        names.push_back(config.inputs[i].array);
    }
    const std::string folder = options.data.empty() ? beside(program, "data", "--data") : options.data;
    const std::map<std::string, Part> parts = read_dataset(folder, names);
    for (const auto &[name, part] : parts) {
        check_part(part, name);
    }
    NewFile(options.out);  // said now rather than after an epoch, if it can't be written
    const Part &data = parts.at("train");
    const Part *held = parts.count("validation") != 0 ? &parts.at("validation") : nullptr;
    const long batch = config.training->batch, steps = data.samples / batch, left = data.samples % batch;
    if (steps == 0) {
        fail(folder + ": has " + std::to_string(data.samples) + " training samples, fewer than one batch of " +
             std::to_string(batch));
    }
    Runner training(*config.training, state, options.threads);
    std::unique_ptr<Runner> whole, single;
    long validated = 0;
    if (held != nullptr) {
        const long rest = held->samples % config.inference->batch;
        whole = std::make_unique<Runner>(*config.inference, state, options.threads);
        if (config.single != nullptr && rest != 0) {
            single = std::make_unique<Runner>(*config.single, state, options.threads);
        }
        validated = single != nullptr ? held->samples : held->samples - rest;
        if (validated != held->samples) {
            std::fprintf(stderr, "note: the batch of this network is fixed: the last %ld validation samples are left out\n", rest);
        }
    }
    if (left != 0) {
        std::fprintf(stderr, "note: %ld of %ld training samples do not fill a batch and are left out of each epoch%s\n",
                     left, data.samples, config.shuffle ? " (others every time)" : "");
    }
    print("{\"event\":\"start\",\"network\":" + quoted(config.network) + ",\"optimizer\":" + quoted(config.optimizer) +
          ",\"parameters\":" + std::to_string(config.parameters) + ",\"epoch\":" + std::to_string(state.epoch) +
          ",\"epochs\":" + std::to_string(options.epochs) + ",\"step\":" + std::to_string(state.step) +
          ",\"steps_per_epoch\":" + std::to_string(steps) + ",\"batch\":" + std::to_string(batch) +
          ",\"samples\":" + std::to_string(data.samples) + ",\"left_out\":" + std::to_string(left) +
          ",\"validation_samples\":" + std::to_string(validated) + ",\"threads\":" + std::to_string(options.threads) +
          ",\"seed\":" + std::to_string(state.seed) + "}");

    for (; state.epoch < options.epochs;) {
        const auto begin = Clock::now();
        std::vector<long> order = sample_order(data.samples, state.seed, std::uint64_t(state.epoch));
        if (!config.shuffle) {
            std::iota(order.begin(), order.end(), 0);
        }
        const std::string epoch = std::to_string(state.epoch + 1);
        double sum = 0;
        for (long i = 0; i < steps; ++i) {
            const auto step_begin = Clock::now();
            training.run(data, order.data() + i * batch);
            ++state.step;
            const double loss = training.loss();
            if (!std::isfinite(loss)) {
                fail("the loss is not finite at step " + std::to_string(state.step) + " (epoch " + epoch +
                     "); the weights of the epoch before, if any, are in " + options.out);
            }
            sum += loss;
            if (config.every_step) {
                print("{\"event\":\"step\",\"epoch\":" + epoch + ",\"step\":" + std::to_string(state.step) +
                      ",\"loss\":" + number(loss) + ",\"seconds\":" + number(seconds_since(step_begin)) + "}");
            }
        }
        const double seconds = seconds_since(begin);
        ++state.epoch;
        std::string line = "{\"event\":\"epoch\",\"epoch\":" + epoch + ",\"step\":" + std::to_string(state.step) +
                           ",\"loss\":" + number(sum / double(steps));
        if (validated != 0) {
            const auto validation_begin = Clock::now();
            const Validation found = validate(*held, *whole, single.get());
            line += ",\"validation_loss\":" + number(found.loss);
            line += ",\"validation_accuracy\":" + (found.scored ? number(found.accuracy) : std::string("null"));
            line += ",\"validation_seconds\":" + number(seconds_since(validation_begin));
        }
        write_state(state, options.out);
        print(line + ",\"seconds\":" + number(seconds) + "}");
    }
    print("{\"event\":\"end\",\"weights\":" + quoted(options.out) + "}");
}

}  // namespace

int main(int count, char **words) {
    try {
        const Options options = parse_options(count, words);
        if (options.help) {
            print_help(words[0]);
            return 0;
        }
        train(options, words[0]);
        return 0;
    } catch (const Usage &error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 2;
    } catch (const std::bad_alloc &) {
        std::fprintf(stderr, "error: memory does not suffice\n");
    } catch (const std::exception &error) {
        std::fprintf(stderr, "error: %s\n", error.what());
    }
    return 1;
}
