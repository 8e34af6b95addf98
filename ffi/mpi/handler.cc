#include "cpu/handler.h"

#include "mpi/site.h"

namespace ffi = xla::ffi;

namespace decompops::mpi {
namespace {

ffi::Future execute(Site* site, ffi::RunId run, ffi::AnyBuffer input, ffi::Result<ffi::AnyBuffer> result,
                    ffi::Dictionary) {
  return begin_execution(site, [&](auto& done) {
    const Arguments arguments = arguments_of(site->plan, input, *result);
    if (arguments.batch == 0) return done("");
    auto execution = [site, from = input.untyped_data(), to = result->untyped_data(), arguments,
                      executor = std::optional<Executor>()](double longest) mutable {
      if (!executor) executor.emplace(site->executor(from, to, arguments));
      return executor->run(longest);
    };
    site->submit(run.run_id, input.size_bytes(), std::move(execution), done);
  });
}

constexpr auto kMakeSite = instantiate<Site, std::string_view, std::string_view, std::string_view, std::int64_t>;

XLA_FFI_DEFINE_HANDLER(kInstantiate, kMakeSite,
                       bind_site("ranks")
                           .Attr<std::string_view>("details")
                           .Attr<std::string_view>("thread")
                           .Attr<std::string_view>("site")
                           .Attr<std::int64_t>("communicator"));

XLA_FFI_DEFINE_HANDLER(
    kExecute, execute,
    ffi::Ffi::Bind().Ctx<ffi::State<Site>>().Ctx<ffi::RunId>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attrs());

}  // namespace

}  // namespace decompops::mpi

namespace decompops {

void* instantiate_handler() { return reinterpret_cast<void*>(describe_or_instantiate<mpi::Site, mpi::kInstantiate>); }
void* execute_handler() { return reinterpret_cast<void*>(mpi::kExecute); }

}  // namespace decompops
