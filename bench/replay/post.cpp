// The O(N) procedure of bench/replay/post.py in C++, bound with pybind11; compiled by the benchmark.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace py = pybind11;
using Doubles = py::array_t<double, py::array::c_style>;

class Sampler {
  public:
    Sampler(std::size_t capacity, std::uint64_t seed)
        : weight_(capacity), cumulative_(capacity), drawn_(capacity, 0), random_(seed) {}

    // Weights and their sum. Eight partial sums, so that the loop can be vectorised.
    double weigh(const Doubles &returns, double shift) {
        const double *from = returns.data();
        size_ = static_cast<std::size_t>(returns.size());
        if (size_ > weight_.size()) throw py::value_error("more returns than the capacity");
        double *to = weight_.data();
        double sums[8] = {};
        std::size_t i = 0;
        for (; i + 8 <= size_; i += 8)
            for (std::size_t k = 0; k < 8; ++k) {
                to[i + k] = from[i + k] + shift;
                sums[k] += to[i + k];
            }
        double total = 0.0;
        for (double sum : sums) total += sum;
        for (; i < size_; ++i) total += to[i] = from[i] + shift;
        return total;
    }

    // Successive sampling: cumulative sums, binary searches, repeats drawn again.
    py::array_t<std::int64_t> draw(py::ssize_t count) {
        double total = 0.0;
        for (std::size_t i = 0; i < size_; ++i) cumulative_[i] = total += weight_[i];
        py::array_t<std::int64_t> chosen(count);
        std::int64_t *to = chosen.mutable_data();
        std::uniform_real_distribution<double> unit(0.0, total);
        const auto first = cumulative_.begin(), last = first + static_cast<std::ptrdiff_t>(size_);
        for (py::ssize_t got = 0; got < count;) {
            const auto slot = std::upper_bound(first, last, unit(random_)) - first;
            if (slot == last - first || drawn_[static_cast<std::size_t>(slot)]) continue;
            drawn_[static_cast<std::size_t>(slot)] = 1;
            to[got++] = slot;
        }
        for (py::ssize_t k = 0; k < count; ++k) drawn_[static_cast<std::size_t>(to[k])] = 0;
        return chosen;
    }

  private:
    std::size_t size_ = 0;
    std::vector<double> weight_, cumulative_;
    std::vector<char> drawn_;
    std::mt19937_64 random_;
};

PYBIND11_MODULE(post, module) {
    py::class_<Sampler>(module, "Sampler")
        .def(py::init<std::size_t, std::uint64_t>())
        .def("weigh", &Sampler::weigh)
        .def("draw", &Sampler::draw);
}
