#include "cpu/fftw.h"

#include <dlfcn.h>

#include <mutex>

namespace decompops {
namespace {

// FFTW's interface, as FFTW's manual describes it.
template <class Real>
struct Fftw {
  using Complex = Real[2];
  using Plan = void*;
  Plan (*c2c)(int, const int*, int, Complex*, const int*, int, int, Complex*, const int*, int, int, int, unsigned);
  Plan (*r2c)(int, const int*, int, Real*, const int*, int, int, Complex*, const int*, int, int, unsigned);
  Plan (*c2r)(int, const int*, int, Complex*, const int*, int, int, Real*, const int*, int, int, unsigned);
  void (*run_c2c)(Plan, Complex*, Complex*);
  void (*run_r2c)(Plan, Real*, Complex*);
  void (*run_c2r)(Plan, Complex*, Real*);
  // MKL only: sets how many threads MKL may use for the calling thread. By default, MKL uses one thread for each core.
  int (*set_threads)(int) = nullptr;
};

unsigned flag_of(Planning planning) {
  switch (planning) {
    case Planning::estimate: return 1u << 6;
    case Planning::measure: return 0;
    case Planning::patient: return 1u << 5;
    case Planning::exhaustive: return 1u << 3;
  }
  throw Failure("there is no such planning");
}

template <class Real>
Fftw<Real>& api() {
  static Fftw<Real> api{};
  return api;
}

std::mutex& planner() {  // FFTW's planner is not thread-safe
  static std::mutex mutex;
  return mutex;
}

template <class Real>
void load(const std::string& path, const std::string& prefix) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Failure(dlerror());
  Fftw<Real> loaded{};
  auto find = [&](auto& function, const std::string& name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name.c_str()));
    if (function == nullptr) throw Failure(path + " has no function " + name);
  };
  find(loaded.c2c, prefix + "_plan_many_dft");
  find(loaded.r2c, prefix + "_plan_many_dft_r2c");
  find(loaded.c2r, prefix + "_plan_many_dft_c2r");
  find(loaded.run_c2c, prefix + "_execute_dft");
  find(loaded.run_r2c, prefix + "_execute_dft_r2c");
  find(loaded.run_c2r, prefix + "_execute_dft_c2r");
  loaded.set_threads = reinterpret_cast<int (*)(int)>(dlsym(library, "MKL_Set_Num_Threads_Local"));
  api<Real>() = loaded;
}

// FFTW's plans are never destroyed, because other code in the process may already have called FFTW's cleanup.
template <class Real>
class FftwLines : public AbstractFft {
  using Complex = typename Fftw<Real>::Complex;
  using Kind = Transform::Kind;

 public:
  FftwLines(const LinesOfTile& lines, std::byte* input, std::byte* output, Planning planning)
      : kind_(lines.transform.kind) {
    const int n = static_cast<int>(lines.length), count = static_cast<int>(lines.count);
    const int from = static_cast<int>(lines.in.cells), from_line = static_cast<int>(lines.in.lines);
    const int to = static_cast<int>(lines.out.cells), to_line = static_cast<int>(lines.out.lines);
    const unsigned flag = flag_of(planning);
    std::lock_guard<std::mutex> lock(planner());
    if (api_.set_threads != nullptr) api_.set_threads(1);
    switch (kind_) {
      case Kind::c2c:
        plan_ = api_.c2c(1, &n, count, complex(input), nullptr, from, from_line, complex(output), nullptr, to, to_line,
                         lines.transform.sign, flag);
        break;
      case Kind::r2c:
        plan_ =
            api_.r2c(1, &n, count, real(input), nullptr, from, from_line, complex(output), nullptr, to, to_line, flag);
        break;
      case Kind::c2r:
        plan_ =
            api_.c2r(1, &n, count, complex(input), nullptr, from, from_line, real(output), nullptr, to, to_line, flag);
        break;
      case Kind::r2r: break;
    }
    if (plan_ == nullptr) throw Failure("FFTW has no plan for lines of " + std::to_string(lines.length) + " cells");
  }

  void run(std::byte* from, std::byte* to) const override {
    switch (kind_) {
      case Kind::c2c: return api_.run_c2c(plan_, complex(from), complex(to));
      case Kind::r2c: return api_.run_r2c(plan_, real(from), complex(to));
      case Kind::c2r: return api_.run_c2r(plan_, complex(from), real(to));
      case Kind::r2r: break;
    }
  }

 private:
  static Complex* complex(std::byte* memory) { return reinterpret_cast<Complex*>(memory); }
  static Real* real(std::byte* memory) { return reinterpret_cast<Real*>(memory); }

  const Fftw<Real>& api_ = api<Real>();
  Kind kind_;
  void* plan_ = nullptr;
};

}  // namespace

void load_fftw(const std::string& double_path, const std::string& single_path) {
  load<double>(double_path, "fftw");
  load<float>(single_path, "fftwf");
}

bool has_fftw() { return api<double>().c2c != nullptr && api<float>().c2c != nullptr; }

template <class Real>
std::unique_ptr<AbstractFft> make_fftw(const LinesOfTile& lines, std::byte* input, std::byte* output,
                                       Planning planning) {
  return std::make_unique<FftwLines<Real>>(lines, input, output, planning);
}

template std::unique_ptr<AbstractFft> make_fftw<float>(const LinesOfTile&, std::byte*, std::byte*, Planning);
template std::unique_ptr<AbstractFft> make_fftw<double>(const LinesOfTile&, std::byte*, std::byte*, Planning);

}  // namespace decompops
