/* What the generated file config.cpp says about the network and its training. */
#ifndef META500_TABLES_H
#define META500_TABLES_H

#include <cstdint>

namespace meta500 {

enum class Type { real, int64, int32, boolean };

/* What the pointer of an external tensor is: an input of the batch, all parameters in one array, a slot of the
 * optimizer (an array like the parameters), a number that the optimizer takes, a statistic that belongs to the
 * weights but is not trained, a constant, the state of random numbers (seed and step), or a result. */
enum class Role { input, parameters, slot, setting, statistic, constant, random, result };

struct External {
    Role role;
    const char *name;
    Type type;
    long elements;
    const void *constant;
};

/* A tensor of the weights; `offset` is its place in the array of all parameters, -1 for a statistic. */
struct Tensor {
    const char *name;
    long offset;
    int rank;
    long shape[8];
};

/* An input; `shape` is that of one sample. */
struct Input {
    const char *name, *array;  // its name in the network and in the data
    Type type;
    int rank;
    long shape[8];
};

/* After a run, the external tensor of this number is the new value of a statistic. */
struct Update {
    const char *statistic;
    int external;
};

/* A program of the generated code: see its network.cpp. `loss` and `scores` are numbers of external tensors; scores
 * are (batch, classes, pixels), or none (-1). */
struct Program {
    long batch;
    long bytes;  // of memory that it takes for itself
    void *(*open)();
    void (*close)(void *);
    int (*run)(void *, void *const *);
    void (*threads)(int);
    const External *externals;
    int external_count;
    const Update *updates;
    int update_count;
    const char *const *faults;
    int loss, scores;
};

/* All that is decided when the program is generated. */
struct Config {
    const char *network;
    const char *optimizer;
    double learning_rate, momentum, beta1, beta2, epsilon, weight_decay;
    long epochs;
    std::uint64_t seed;
    bool shuffle, every_step;
    int threads;
    long parameters, packed;  // number of parameters, and elements of the array that has them all
    const Tensor *tensors;
    int tensor_count;
    const char *const *slots;
    int slot_count;
    const Input *inputs;
    int input_count;
    int label;  // number of the input with the classes, or -1
    long classes, pixels;
    bool ignores;  // whether labels equal to `ignored` do not count
    std::int64_t ignored;
    const Program *training, *inference, *single;  // single: inference of one sample, or null
};

extern const Config config;

}  // namespace meta500

#endif
