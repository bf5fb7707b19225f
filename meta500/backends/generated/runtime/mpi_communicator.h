/* The communicator of an instance: handed over as the address of an MPI_Comm, checked, and used from one thread. */
#ifndef META500_MPI_COMMUNICATOR_H
#define META500_MPI_COMMUNICATOR_H

#include <mpi.h>

#include <cstddef>

namespace meta500 {

template <class T> inline MPI_Datatype mpi_type();
template <> inline MPI_Datatype mpi_type<float>() { return MPI_FLOAT; }
template <> inline MPI_Datatype mpi_type<double>() { return MPI_DOUBLE; }

/* What is wrong with a handle. */
enum class Handle { good = 0, other_size = 1, not_running = 2, unknown = 3 };

/* A communicator that belongs to the caller. All calls come from one thread, the one that runs the program. */
class Communicator {
  public:
    /* Take the handle that lies at `address` and has `bytes` there; `size` and `rank` are what the caller knows. */
    Handle take(const void *address, std::size_t bytes, int rank, int size) {
        if (bytes != sizeof(MPI_Comm)) return Handle::other_size;
        int running = 0;
        // Of another copy of the library, which was not initialised, it would be false.
        if (MPI_Initialized(&running) != MPI_SUCCESS || !running) return Handle::not_running;
        const MPI_Comm given = *static_cast<const MPI_Comm *>(address);
        if (MPI_Comm_rank(given, &rank_) != MPI_SUCCESS || MPI_Comm_size(given, &size_) != MPI_SUCCESS ||
            rank_ != rank || size_ != size)
            return Handle::unknown;
        handle_ = given;
        return Handle::good;
    }

    MPI_Comm handle() const { return handle_; }
    int rank() const { return rank_; }
    int size() const { return size_; }

  private:
    MPI_Comm handle_ = MPI_COMM_NULL;
    int rank_ = 0, size_ = 1;
};

}  // namespace meta500

#endif
