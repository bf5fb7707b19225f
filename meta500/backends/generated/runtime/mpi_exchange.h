/* Sums over all ranks of parts of one array, each begun as soon as it is complete, while the program goes on.
 *
 * All MPI calls come from the thread that runs the program, thread 0 of the team (MPI_THREAD_FUNNELED). The other
 * threads say which parts are complete; thread 0 begins their reductions between its kernels, in one order on all
 * ranks, and lets MPI make progress. */
#ifndef META500_MPI_EXCHANGE_H
#define META500_MPI_EXCHANGE_H

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "mpi_communicator.h"

namespace meta500 {

/* When something began and ended: nanoseconds of the steady clock. */
struct Span {
    std::int64_t begin, end;
};

inline std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

/* Records the time that it lives, if `wanted`. */
class Recorded {
  public:
    Recorded(Span &span, bool wanted) : span_(wanted ? &span : nullptr) {
        if (span_) span_->begin = now();
    }
    ~Recorded() {
        if (span_) span_->end = now();
    }
    Recorded(const Recorded &) = delete;
    Recorded &operator=(const Recorded &) = delete;

  private:
    Span *span_;
};

/* Between two looks at something that is not there yet: at once, then after other threads, then after a nap. */
class Patience {
  public:
    void operator()() {
        ++looks_;
        if (looks_ < 256) return;
        if (looks_ < 4096)
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(std::chrono::microseconds(20));
    }

  private:
    int looks_ = 0;
};

/* First element and end of a part. */
struct Range {
    long first, end;
};

/* How an exchange ends, beside the numbers of faults, which are positive. */
enum Outcome : int { fine = 0, different = -1, late = -2, broken = -3 };

/* `parts` parts; `stops` moments at which threads have finished something that parts are made of. */
template <class Real, int parts, int stops> class Exchange {
  public:
    Communicator communicator;
    double seconds = 600;  // after which a rank that does not take part is given up
    double samples = 1;    // of this rank; without any it takes part with gradients that are 0
    bool added = false;    // gradients of ranks are added, not averaged

    /* Before the threads begin. `ranges` of `array` are reduced in this order, each after so many calls of complete()
       as `needs` says; `signature`, a number below 2^20, is the same where ranks do the same. Times of the parts, and
       of the first exchange before them, go to `spans`. */
    void begin(Real *array, const Range *ranges, const int *needs, long signature, Span *spans) {
        array_ = array, ranges_ = ranges, spans_ = spans;
        next_ = 0, outcome_ = fine, error_ = MPI_SUCCESS, culprit_ = {0, communicator.rank()};
        weighed_.store(false, std::memory_order_relaxed);
        finished_.store(0, std::memory_order_relaxed);
        for (int i = 0; i < parts; ++i) missing_[i].store(needs[i], std::memory_order_relaxed);
        for (auto &count : arrived_) count.store(0, std::memory_order_relaxed);
        requests_.fill(MPI_REQUEST_NULL);
        for (int i = 0; i < parts && !works(); ++i)
            std::fill(array + ranges[i].first, array + ranges[i].end, Real(0));
        // Numbers are the same on all ranks if their squares have no variance; sums of these are exact.
        const double number = double(signature);
        sums_ = {samples, number, number * number};
        start(head, sums_.data(), 3, MPI_DOUBLE, MPI_SUM);
    }

    /* Called by all threads before they need this rank's share, which goes to `weight`. */
    void weigh(int part, Real *weight) {
        if (part == 0) {
            if (weighed_.load(std::memory_order_relaxed)) return;
            await(head);
            const double ranks = communicator.size();
            if (outcome_ == fine && ranks * sums_[2] != sums_[1] * sums_[1]) outcome_ = different;
            share_ = samples > 0 && outcome_ == fine ? samples / sums_[0] : 0;
            *weight = Real(added && samples > 0 ? 1 : share_);
            weighed_.store(true, std::memory_order_release);
            return;
        }
        Patience wait;
        while (!weighed_.load(std::memory_order_acquire)) wait();
    }

    /* Called by every thread at a stop; true for the last of `threads`. */
    bool last_at(int stop, int threads) {
        return threads == 1 || arrived_[stop].fetch_add(1, std::memory_order_acq_rel) == threads - 1;
    }

    /* Something that `part` is made of is there. */
    void complete(int part) { missing_[part].fetch_sub(1, std::memory_order_acq_rel); }

    /* Thread 0 between its kernels: begin what is complete, and let MPI work. */
    void poll() {
        if (outcome_ != fine) return;
        if (weighed_.load(std::memory_order_relaxed))
            while (next_ < parts && missing_[next_].load(std::memory_order_acquire) <= 0) begin_next();
        progress();
    }

    /* All threads when they have nothing else to do: thread 0 goes on with the exchange until the others come. */
    void gather_threads(int part, int threads) {
        if (part != 0) {
            finished_.fetch_add(1, std::memory_order_acq_rel);
            return;
        }
        Patience wait;
        while (finished_.load(std::memory_order_acquire) < threads - 1) poll(), wait();
        finished_.store(0, std::memory_order_relaxed);
        poll();
    }

    /* Thread 0, when all parts are complete or `fault` (its number, or 0) makes them worthless: begin the rest. */
    void begin_rest(Real *weight) {
        weigh(0, weight);
        while (outcome_ == fine && next_ < parts) begin_next();
    }

    /* Whether this rank has something to compute. */
    bool works() const { return samples > 0; }

    /* Thread 0: this rank's part in the mean of `count` numbers at `data`. */
    void share_of(const Real *data, long count, Real *result) const {
        for (long i = 0; i < count; ++i) result[i] = works() ? Real(share_) * data[i] : Real(0);
    }

    /* Thread 0: the sum of `count` numbers at `data` over all ranks, after all parts. */
    void begin_statistics(Real *data, long count) { start(statistics, data, count, mpi_type<Real>(), MPI_SUM); }

    /* Thread 0: whether any rank has a fault, and which. */
    void begin_faults(int fault) {
        culprit_ = {fault, communicator.rank()};
        start(faults, &culprit_, 1, MPI_2INT, MPI_MAXLOC);
    }

    /* Thread 0: wait for everything. 0, an Outcome, or the number of the worst fault of all ranks. */
    int finish() {
        for (int i = 0; i < all; ++i) await(i);
        return outcome_ != fine ? outcome_ : culprit_.code;
    }

    int culprit() const { return culprit_.rank; }
    int error() const { return error_; }
    bool good() const { return outcome_ == fine; }

  private:
    static constexpr int head = parts, statistics = parts + 1, faults = parts + 2, all = parts + 3;

    void begin_next() {
        const Range range = ranges_[next_];
        start(next_, array_ + range.first, range.end - range.first, mpi_type<Real>(), MPI_SUM);
        ++next_;
    }

    void start(int number, void *data, long count, MPI_Datatype type, MPI_Op op) {
        if (outcome_ != fine) return;
        spans_[number] = {now(), 0};
        check(MPI_Iallreduce(MPI_IN_PLACE, data, int(count), type, op, communicator.handle(), &requests_[number]));
    }

    void progress() {
        int count = 0;
        check(MPI_Testsome(all, requests_.data(), &count, ended_.data(), MPI_STATUSES_IGNORE));
        if (count == MPI_UNDEFINED || outcome_ != fine) return;
        for (int i = 0; i < count; ++i) spans_[ended_[i]].end = now();
    }

    void await(int number) {
        Patience wait;
        const std::int64_t begin = now();
        while (outcome_ == fine && requests_[number] != MPI_REQUEST_NULL) {
            progress();
            if (requests_[number] == MPI_REQUEST_NULL) return;
            wait();
            if (double(now() - begin) > seconds * 1e9) outcome_ = late;
        }
    }

    void check(int code) {
        if (code != MPI_SUCCESS) outcome_ = broken, error_ = code;
    }

    struct Culprit {
        int code, rank;
    };

    Real *array_ = nullptr;
    const Range *ranges_ = nullptr;
    Span *spans_ = nullptr;
    int next_ = 0, outcome_ = fine, error_ = MPI_SUCCESS;
    Culprit culprit_ = {0, 0};
    double share_ = 0;
    std::array<double, 3> sums_ = {};
    std::array<MPI_Request, all> requests_ = {};
    std::array<int, all> ended_ = {};
    std::array<std::atomic<int>, (parts > 0 ? parts : 1)> missing_ = {};
    std::array<std::atomic<int>, (stops > 0 ? stops : 1)> arrived_ = {};
    std::atomic<bool> weighed_{false};
    std::atomic<int> finished_{0};
};

}  // namespace meta500

#endif
