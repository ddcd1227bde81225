// A CUDA device that computes nothing, for a PyTorch that was built without CUDA. Fake tensors on `cuda` need a guard of
// the device's streams, and hooks that say how many devices there are; a CUDA build of PyTorch has both.
// Interfaces: c10/core/impl/DeviceGuardImplInterface.h and ATen/detail/CUDAHooksInterface.h of PyTorch 2.13.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>

namespace {

constexpr at::DeviceIndex devices_of_a_machine = 8;

struct AbsentDevices final : at::CUDAHooksInterface {
  explicit AbsentDevices(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(at::DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return devices_of_a_machine; }
  at::DeviceIndex deviceCount() const override { return devices_of_a_machine; }
  at::DeviceIndex getCurrentDevice() const override { return 0; }
  at::DeviceIndex current_device() const override { return 0; }
  void deviceSynchronize(at::DeviceIndex) const override {}
};

}  // namespace

namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, AbsentDevices)
}

namespace c10::impl {
using AbsentGuard = FakeGuardImpl<DeviceType::CUDA>;
C10_REGISTER_GUARD_IMPL(CUDA, AbsentGuard)
}  // namespace c10::impl
