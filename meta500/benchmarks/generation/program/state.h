/* What training changes: parameters, statistics, the optimizer's slots, how far it is; saved and read again. */
#ifndef META500_STATE_H
#define META500_STATE_H

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "buffers.h"
#include "options.h"
#include "real.h"
#include "tables.h"
#include "weights.h"

namespace meta500 {

/* Zeros for a number of elements. */
inline Buffer zeros(long elements, std::size_t each, const std::string &what) {
    Buffer found(std::size_t(elements) * each);
    if (!found) {
        fail("memory does not suffice for " + what + " (" + std::to_string(std::size_t(elements) * each >> 20) + " MiB)");
    }
    return found;
}

struct State {
    Buffer parameters;
    std::map<std::string, Buffer> slots, statistics;
    long step = 0, epoch = 0;
    std::uint64_t seed = 0;
};

inline constexpr char real_name[] = {'F', sizeof(real) == 4 ? '3' : '6', sizeof(real) == 4 ? '2' : '4', 0};

namespace detail {

inline std::vector<long> shape_of(const Tensor &tensor) {
    return std::vector<long>(tensor.shape, tensor.shape + tensor.rank);
}

inline long elements_of(const Tensor &tensor) {
    long product = 1;
    for (int i = 0; i < tensor.rank; ++i) {
        product *= tensor.shape[i];
    }
    return product;
}

inline std::string slot_name(const std::string &slot, const char *tensor) { return "optimizer/" + slot + "/" + tensor; }

inline long whole_text(const Weights &from, const std::string &key) {
    const std::string text = from.metadata(key);
    if (text.empty() || text.size() > 18 || text.find_first_not_of("0123456789") != std::string::npos) {
        fail(from.path() + ": its '" + key + "' is '" + text + "', no whole number");
    }
    return std::stol(text);
}

}  // namespace detail

inline State new_state() {
    State state;
    state.parameters = zeros(config.packed, sizeof(real), "the parameters");
    for (int i = 0; i < config.slot_count; ++i) {
        state.slots[config.slots[i]] = zeros(config.packed, sizeof(real), "the state of the optimizer");
    }
    for (int i = 0; i < config.tensor_count; ++i) {
        const Tensor &tensor = config.tensors[i];
        if (tensor.offset < 0) {
            state.statistics[tensor.name] = zeros(detail::elements_of(tensor), sizeof(real), "the statistics");
        }
    }
    return state;
}

/* Takes everything from a file; of weights that no program like this one has saved, parameters and statistics only,
 * and with `restart` too. */
inline void read_state(State &state, const Weights &from, bool restart) {
    const bool ours = from.metadata("format") == weights_format;
    const bool all = ours && !restart && !from.metadata("optimizer").empty();
    if (all && from.metadata("optimizer") != config.optimizer) {
        fail(from.path() + ": was saved with the optimizer " + from.metadata("optimizer") + ", this program has " +
             config.optimizer + "; --restart takes the parameters only");
    }
    for (int i = 0; i < config.tensor_count; ++i) {
        const Tensor &tensor = config.tensors[i];
        const StoredTensor &found = from.get(tensor.name, real_name, detail::shape_of(tensor));
        real *to = tensor.offset < 0 ? state.statistics[tensor.name].at<real>()
                                     : state.parameters.at<real>() + tensor.offset;
        std::memcpy(to, found.data, found.bytes);
        for (auto &[slot, buffer] : state.slots) {
            if (all && tensor.offset >= 0) {
                const StoredTensor &part =
                    from.get(detail::slot_name(slot, tensor.name), real_name, detail::shape_of(tensor));
                std::memcpy(buffer.at<real>() + tensor.offset, part.data, part.bytes);
            }
        }
    }
    for (const auto &[name, tensor] : from.tensors()) {
        bool known = name.rfind("optimizer/", 0) == 0;
        for (int i = 0; i < config.tensor_count; ++i) {
            known = known || name == config.tensors[i].name;
        }
        if (!known) {
            fail(from.path() + ": has a tensor '" + name + "', which this network does not have");
        }
    }
    if (all) {
        state.step = detail::whole_text(from, "step");
        state.epoch = detail::whole_text(from, "epoch");
        state.seed = std::uint64_t(detail::whole_text(from, "seed"));
    }
}

inline void write_state(const State &state, const std::string &path) {
    std::vector<StoredTensor> tensors;
    const auto add = [&](const std::string &name, const Tensor &like, const real *data) {
        tensors.push_back({name, real_name, detail::shape_of(like), reinterpret_cast<const char *>(data),
                           std::size_t(detail::elements_of(like)) * sizeof(real)});
    };
    for (int i = 0; i < config.tensor_count; ++i) {
        const Tensor &tensor = config.tensors[i];
        add(tensor.name, tensor, tensor.offset < 0 ? state.statistics.at(tensor.name).at<real>()
                                                   : state.parameters.at<real>() + tensor.offset);
    }
    for (const auto &[slot, buffer] : state.slots) {
        for (int i = 0; i < config.tensor_count; ++i) {
            const Tensor &tensor = config.tensors[i];
            if (tensor.offset >= 0) {
                add(detail::slot_name(slot, tensor.name), tensor, buffer.at<real>() + tensor.offset);
            }
        }
    }
    write_weights(path, tensors,
                  {{"network", config.network},
                   {"optimizer", config.optimizer},
                   {"step", std::to_string(state.step)},
                   {"epoch", std::to_string(state.epoch)},
                   {"seed", std::to_string(state.seed)}});
}

}  // namespace meta500

#endif
