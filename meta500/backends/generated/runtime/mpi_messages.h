/* Halos between neighbouring processes of a grid and sums over all of them, in the middle of a program.
 *
 * All threads of the team call these functions: they pack and unpack together, thread 0 talks to MPI
 * (MPI_THREAD_FUNNELED). Messages of all images of a batch travel together. */
#ifndef META500_MPI_MESSAGES_H
#define META500_MPI_MESSAGES_H

#include "generated.h"
#include "mpi_communicator.h"
#include "mpi_exchange.h"

namespace meta500 {

/* The rectangular part of a strided array that begins `offset` elements after the one with index 0. */
template <int rank> struct Box {
    long offset;
    long sizes[rank];

    long rows() const {
        long count = 1;
        for (int d = 0; d < rank - 1; ++d) count *= sizes[d];
        return count;
    }
    long count() const { return rows() * sizes[rank - 1]; }
};

/* The boxes that go to and come from the previous (0) and the next (1) neighbour along one direction of the grid. */
template <int rank> struct Halo {
    int direction, tag;
    bool adding;  // what comes is added to what is there
    long strides[rank];
    Box<rank> sent[2], received[2];
};

/* What becomes of an element of an array and its place in a packed message. */
template <class Real> struct Pack {
    void operator()(Real &element, Real &place) const { place = element; }
};
template <class Real> struct Unpack {
    void operator()(Real &element, Real &place) const { element = place; }
};
template <class Real> struct Add {
    void operator()(Real &element, Real &place) const { element += place; }
};

/* Calls `what` for the elements of this thread's rows of a box, in row-major order of their indices. */
template <class Real, int rank, class What>
void visit(Real *data, const long (&strides)[rank], const Box<rank> &box, Real *packed, int part, int parts,
           What what) {
    const long length = box.sizes[rank - 1], step = strides[rank - 1], rows = box.rows();
    if (length == 0) return;
    const long last = share(rows, part + 1, parts);
    for (long row = share(rows, part, parts); row < last; ++row) {
        Real *from = data + box.offset;
        for (long rest = row, d = rank - 2; d >= 0; --d) {
            from += rest % box.sizes[d] * strides[d];
            rest /= box.sizes[d];
        }
        Real *to = packed + row * length;
        if (step == 1)
            for (long i = 0; i < length; ++i) what(from[i], to[i]);
        else
            for (long i = 0; i < length; ++i) what(from[i * step], to[i]);
    }
}

/* What was exchanged, in bytes, and how long thread 0 was at it. */
struct Volume {
    std::int64_t calls, sent, received, nanoseconds;
};

/* The processes that a program's messages go to and come from. */
class Messages {
  public:
    static constexpr int none = -1;

    Communicator communicator;
    Volume halos = {}, sums = {};  // since the caller last looked
    double seconds = 600;          // after which a process that does not answer is given up

    /* Ranks above, below, left and right; `none` at the border. */
    void neighbours(const int *ranks) {
        for (int i = 0; i < 4; ++i) neighbours_[i / 2][i % 2] = ranks[i];
    }

    /* Before the threads begin. */
    void begin() { outcome_ = fine, error_ = MPI_SUCCESS; }

    /* 0, or an Outcome less 10, which no other part of a program returns. */
    int fault() const { return outcome_ == fine ? 0 : outcome_ - 10; }
    int error() const { return error_; }

    /* Thread 0: send to both neighbours along a direction and receive from them; counts may be 0. */
    template <class Real>
    void exchange(int direction, int tag, Real *const (&sent)[2], const long (&to_send)[2],
                  Real *const (&received)[2], const long (&to_receive)[2]) {
        if (outcome_ != fine) return;
        MPI_Request requests[4] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL};
        const MPI_Datatype type = mpi_type<Real>();
        const MPI_Comm comm = communicator.handle();
        const std::int64_t start = now();
        for (int side = 0; side < 2; ++side) {
            const int other = neighbours_[direction][side];
            if ((to_send[side] || to_receive[side]) && other == none) return fail(MPI_ERR_RANK);
            if (to_receive[side])
                check(MPI_Irecv(received[side], int(to_receive[side]), type, other, tag, comm, &requests[side]));
            if (to_send[side])
                check(MPI_Isend(sent[side], int(to_send[side]), type, other, tag, comm, &requests[2 + side]));
        }
        await(requests, 4);
        const std::int64_t size = sizeof(Real);
        count(halos, (to_send[0] + to_send[1]) * size, (to_receive[0] + to_receive[1]) * size, start);
    }

    /* Thread 0: the sum over all processes, in place. */
    template <class Real> void sum(Real *data, long count) {
        if (outcome_ != fine) return;
        MPI_Request request = MPI_REQUEST_NULL;
        const std::int64_t start = now();
        check(MPI_Iallreduce(MPI_IN_PLACE, data, int(count), mpi_type<Real>(), MPI_SUM, communicator.handle(),
                             &request));
        await(&request, 1);
        this->count(sums, count * std::int64_t(sizeof(Real)), count * std::int64_t(sizeof(Real)), start);
    }

    /* Thread 0: the largest number of a fault of all processes, so that none goes on alone; or as fault(). */
    int worst(int fault) {
        MPI_Request request = MPI_REQUEST_NULL;
        if (outcome_ == fine)
            check(MPI_Iallreduce(MPI_IN_PLACE, &fault, 1, MPI_INT, MPI_MAX, communicator.handle(), &request));
        await(&request, 1);
        return outcome_ != fine ? this->fault() : fault;
    }

  private:
    static void count(Volume &volume, std::int64_t sent, std::int64_t received, std::int64_t start) {
        ++volume.calls, volume.sent += sent, volume.received += received, volume.nanoseconds += now() - start;
    }

    void fail(int code) { outcome_ = broken, error_ = code; }
    void check(int code) {
        if (code != MPI_SUCCESS) fail(code);
    }

    void await(MPI_Request *requests, int count) {
        Patience wait;
        const std::int64_t begin = now();
        for (int done = 0; outcome_ == fine;) {
            check(MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE));
            if (done) return;
            wait();
            if (double(now() - begin) > seconds * 1e9) outcome_ = late;
        }
    }

    int neighbours_[2][2] = {{none, none}, {none, none}};
    int outcome_ = fine, error_ = MPI_SUCCESS;
};

/* Exchange the halos of an array; `buffer` has room for all boxes. Called by all threads. */
template <class Real, int rank>
void exchange_halo(Messages &messages, Real *data, Real *buffer, const Halo<rank> &halo, int part, int parts) {
    Real *sent[2], *received[2];
    long to_send[2], to_receive[2];
    Real *next = buffer;
    for (int side = 0; side < 2; ++side) {
        sent[side] = next, next += to_send[side] = halo.sent[side].count();
        received[side] = next, next += to_receive[side] = halo.received[side].count();
        visit(data, halo.strides, halo.sent[side], sent[side], part, parts, Pack<Real>());
    }
    wait();
    if (part == 0) messages.exchange(halo.direction, halo.tag, sent, to_send, received, to_receive);
    wait();
    for (int side = 0; side < 2; ++side) {
        if (!halo.adding) {
            visit(data, halo.strides, halo.received[side], received[side], part, parts, Unpack<Real>());
            continue;
        }
        visit(data, halo.strides, halo.received[side], received[side], part, parts, Add<Real>());
        wait();  // both neighbours may add to the same cells
    }
}

/* Sum an array over all processes; `buffer` has room for it. Called by all threads. */
template <class Real, int rank>
void sum_over_processes(Messages &messages, Real *data, Real *buffer, const long (&strides)[rank],
                        const Box<rank> &box, int part, int parts) {
    visit(data, strides, box, buffer, part, parts, Pack<Real>());
    wait();
    if (part == 0) messages.sum(buffer, box.count());
    wait();
    visit(data, strides, box, buffer, part, parts, Unpack<Real>());
}

}  // namespace meta500

#endif
