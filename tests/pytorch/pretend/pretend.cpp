// A pretend accelerator on PyTorch's key PrivateUse1: devices with memory that the CPU cannot read, lazy streams, events
// and pinned memory.
//
// It has no thread. A stream's tasks run when a thread waits for them, or as the mode says. A copy is two steps: its
// target becomes NaN, and later it has the values. A kernel computes at its launch and publishes its result by such a
// copy. Freed and fresh memory is NaN. So a missing wait shows in the values.
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>

namespace {

constexpr auto KIND = c10::DeviceType::PrivateUse1;
constexpr int DEVICES = 4;
constexpr size_t SPACE = size_t(8) << 30;  // bytes of address space, of all devices together

enum Mode { LATE, HASTY, TURN, RANDOM, EAGER };

using Lane = int64_t;  // a stream: its id, or -1 - device for a default stream

struct Mark {
  Lane lane;
  bool done = false;
};
using MarkPtr = std::shared_ptr<Mark>;

struct Task {  // waits for `after`, runs its steps, and sets `mark`
  MarkPtr after, mark;
  std::deque<std::function<void()>> steps;
};

struct Block {
  size_t size;
  Lane lane;
  std::set<Lane> users;
};

struct World {
  std::recursive_mutex lock;
  std::map<Lane, std::deque<Task>> queues;
  std::map<Lane, int64_t> turns;      // a lane's number on its device
  int64_t lanes = 0, made[DEVICES] = {};
  std::map<char*, Block> blocks;      // by the address that tensors show
  std::multimap<size_t, char*> unused;
  std::map<char*, size_t> pinned;
  std::vector<char*> dead;            // pinned memory that was freed while copies may be under way
  char *shown, *real;
  size_t top = 4096;
  int64_t device_left = -1, pinned_left = -1;  // bytes that may be allocated from now on; negative: no limit
  int64_t allocated = 0, lost = 0;    // pinned blocks ever allocated; whether the device is lost
  Mode mode = LATE;
  Lane slow = 0;
  std::mt19937_64 dice;

  World() {
    auto space = [](int protection) {
      return (char*)mmap(nullptr, SPACE, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    };
    shown = space(PROT_NONE);
    real = space(PROT_READ | PROT_WRITE);
  }
  char* inside(const void* address) { return real + ((char*)address - shown); }

  // -- time

  bool step(Lane lane) {  // one step, unless the lane waits for another
    auto found = queues.find(lane);
    if (found == queues.end()) return false;
    auto& task = found->second.front();
    if (task.after && !task.after->done) return false;
    if (!task.steps.empty()) {
      auto now = std::move(task.steps.front());
      task.steps.pop_front();
      now();
    }
    if (task.steps.empty()) {
      if (task.mark) task.mark->done = true;
      found->second.pop_front();
      if (found->second.empty()) queues.erase(found);
    }
    return true;
  }
  std::vector<Lane> busy() {
    std::vector<Lane> found;
    for (auto& each : queues) found.push_back(each.first);
    return found;
  }
  void drain(Lane lane, MarkPtr until = nullptr) {
    while (queues.count(lane) && !(until && until->done)) {
      auto after = queues[lane].front().after;
      if (after && !after->done) drain(after->lane, after);
      step(lane);
    }
  }
  void drain(const MarkPtr& mark) {
    if (mark && !mark->done) drain(mark->lane, mark);
  }
  void drain_all() {
    for (auto each : busy()) drain(each);
  }
  bool hasty(Lane lane) {
    return mode == HASTY ? lane != slow : turns[lane] % 3 != slow;
  }
  void elapse() {
    if (mode == HASTY || mode == TURN)
      for (bool any = true; any;) {
        any = false;
        for (auto each : busy())
          if (hasty(each)) any |= step(each);
      }
    if (mode == RANDOM)
      for (auto n = dice() % 4; n > 0 && !queues.empty(); n--) {
        auto lanes = busy();
        step(lanes[dice() % lanes.size()]);
      }
    if (mode == EAGER) drain_all();
    if (queues.empty()) {
      for (auto each : dead) {
        pinned.erase(each);
        free(each);
      }
      dead.clear();
    }
  }
  void push(Lane lane, Task task) {
    TORCH_CHECK(!lost, "pretend error: the device is lost");
    queues[lane].push_back(std::move(task));
    elapse();
  }

  // -- memory

  static bool spend(int64_t& left, size_t bytes) {
    if (left < 0) return true;
    if (left < int64_t(bytes)) return false;
    left -= bytes;
    return true;
  }
  char* allocate(size_t bytes, Lane lane) {
    bytes = (bytes + 511) / 512 * 512;
    TORCH_CHECK_WITH(OutOfMemoryError, spend(device_left, bytes) && top + bytes <= SPACE, "pretend out of memory");
    char* found = shown + top;
    if (auto it = unused.find(bytes); it != unused.end()) {
      found = it->second;
      unused.erase(it);
    } else {
      top += bytes;
      memset(inside(found), 0xff, bytes);
    }
    blocks[found] = {bytes, lane, {}};
    return found;
  }
  void release(char* address) {  // in the order of the lane that it was allocated on, and of those recorded
    auto found = blocks.find(address);
    if (found == blocks.end()) return;
    auto block = found->second;
    blocks.erase(found);
    for (auto user : block.users) {
      auto mark = std::make_shared<Mark>(Mark{user});
      queues[user].push_back({nullptr, mark, {}});
      queues[block.lane].push_back({mark, nullptr, {}});
    }
    auto reuse = [=, this] {
      memset(inside(address), 0xff, block.size);
      unused.emplace(block.size, address);
    };
    queues[block.lane].push_back({nullptr, nullptr, {reuse}});
    elapse();
  }
};

World& world() {
  static auto* one = new World;  // never freed: tensors may outlive main()
  return *one;
}
using Lock = std::lock_guard<std::recursive_mutex>;

thread_local c10::DeviceIndex device_now = 0;
thread_local Lane stream_now[DEVICES] = {};
thread_local bool computing = false;
thread_local int64_t waits = 0;  // of this thread, for a device

c10::DeviceIndex index_of(c10::Device device) { return device.has_index() ? device.index() : device_now; }
Lane lane_of(c10::DeviceIndex device, int64_t stream) { return stream ? stream : -1 - device; }
Lane lane_of(const c10::Stream& stream) { return lane_of(stream.device_index(), stream.id()); }
Lane lane_now(c10::DeviceIndex device) { return lane_of(device, stream_now[device]); }
c10::Stream stream_of(c10::DeviceIndex device, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(KIND, device), id);
}

struct DeviceAllocator final : c10::Allocator {
  static void drop(void* address) {
    Lock hold(world().lock);
    world().release((char*)address);
  }
  c10::DataPtr allocate(size_t bytes) override {
    Lock hold(world().lock);
    auto* address = bytes ? world().allocate(bytes, lane_now(device_now)) : nullptr;
    return {address, address, &drop, c10::Device(KIND, device_now)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void*, const void*, size_t) const override { TORCH_CHECK(false, "no copy_data"); }
} device_allocator;

struct PinnedAllocator final : c10::Allocator {
  static void drop(void* address) {
    Lock hold(world().lock);
    if (address) world().dead.push_back((char*)address);
    world().elapse();
  }
  c10::DataPtr allocate(size_t bytes) override {
    auto& w = world();
    Lock hold(w.lock);
    TORCH_CHECK(World::spend(w.pinned_left, bytes), "pretend error: no more memory can be pinned");
    auto* address = bytes ? (char*)aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr;
    if (address) {
      memset(address, 0xff, bytes);
      w.pinned[address] = bytes;
      w.allocated++;
    }
    return {address, address, &drop, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* to, const void* from, size_t bytes) const override { memcpy(to, from, bytes); }
} pinned_allocator;

bool is_pinned(const void* address) {
  auto& w = world();
  Lock hold(w.lock);
  auto found = w.pinned.upper_bound((char*)address);
  return found != w.pinned.begin() && (--found, (char*)address < found->first + found->second);
}

// -- devices, streams, events

struct Event {
  MarkPtr mark;
  int asked = 0;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return KIND; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = device_now;
    setDevice(device);
    return {KIND, before};
  }
  c10::Device getDevice() const override { return {KIND, device_now}; }
  void setDevice(c10::Device device) const override { device_now = index_of(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { device_now = index_of(device); }
  c10::DeviceIndex deviceCount() const noexcept override { return DEVICES; }
  c10::Stream getStream(c10::Device device) const override {
    return stream_of(index_of(device), stream_now[index_of(device)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(index_of(device), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    auto& w = world();
    Lock hold(w.lock);
    w.turns[++w.lanes] = ++w.made[index_of(device)];
    return stream_of(index_of(device), w.lanes);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto before = stream_now[stream.device_index()];
    stream_now[stream.device_index()] = stream.id();
    return stream_of(stream.device_index(), before);
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    Lock hold(world().lock);
    if (!*event) *event = new Event;
    auto mark = std::make_shared<Mark>(Mark{lane_of(stream)});
    *(Event*)*event = {mark};
    world().push(mark->lane, {nullptr, mark, {}});
  }
  void block(void* event, const c10::Stream& stream) const override {
    Lock hold(world().lock);
    if (event && ((Event*)event)->mark) world().push(lane_of(stream), {((Event*)event)->mark, nullptr, {}});
  }
  bool queryEvent(void* given) const override {
    Lock hold(world().lock);
    auto* event = (Event*)given;
    if (!event || !event->mark) return true;
    world().elapse();
    if (!event->mark->done && ++event->asked > 3) world().drain(event->mark);  // a loop of queries ends
    return event->mark->done;
  }
  void synchronizeEvent(void* event) const override {
    Lock hold(world().lock);
    TORCH_CHECK(!world().lost, "pretend error: the device is lost");
    waits++;
    if (event) world().drain(((Event*)event)->mark);
    world().elapse();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete (Event*)event; }
  double elapsedTime(void*, void*, c10::DeviceIndex) const override { return 0; }
  bool queryStream(const c10::Stream& stream) const override {
    Lock hold(world().lock);
    world().elapse();
    return !world().queues.count(lane_of(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Lock hold(world().lock);
    waits++;
    world().drain(lane_of(stream));
    world().elapse();
  }
  void synchronizeDevice(c10::DeviceIndex) const override {
    Lock hold(world().lock);
    TORCH_CHECK(!world().lost, "pretend error: the device is lost");
    waits++;
    world().drain_all();
    world().elapse();
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    Lock hold(world().lock);
    auto found = world().blocks.find((char*)data.get());
    if (found != world().blocks.end() && found->second.lane != lane_of(stream))
      found->second.users.insert(lane_of(stream));
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// -- copies

struct Below {  // PyTorch's own kernels: no autograd, and no mode of Python's
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard python{
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};

// A CPU tensor of the same memory. It is no handle of Python's, so that dropping it never waits for Python's lock.
at::Tensor bare(const at::Tensor& tensor) {
  bool on_device = tensor.device().type() == KIND;
  auto* address = on_device ? world().inside(tensor.const_data_ptr()) : (char*)tensor.const_data_ptr();
  auto options = at::TensorOptions().dtype(tensor.dtype()).device(c10::kCPU);
  return at::from_blob(address, tensor.sizes(), tensor.strides(), options);
}

void poison(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) memset(tensor.data_ptr(), 0xff, tensor.nbytes());
}

void copy(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (!from.numel()) return;
  Below below;
  bool out = from.device().type() == KIND, in = to.device().type() == KIND;
  auto lane = lane_now((out ? from : to).device().index());
  auto source = bare(from), target = bare(to);
  if (source.sizes() != target.sizes()) source = source.expand_as(target);
  bool pinned = is_pinned((out ? to : from).const_data_ptr());
  bool async = (out && in) || (non_blocking && pinned) || (in && (non_blocking || computing));
  if (in && !out && (computing || !pinned)) source = source.clone();  // as a driver stages pageable memory
  bool within = out && in && from.storage().is_alias_of(to.storage());

  auto& w = world();
  Lock hold(w.lock);
  if (computing) {
    w.drain(lane);
    if (in) poison(target);
  }
  auto other = out && in ? lane_now(to.device().index()) : lane;
  auto before = std::make_shared<Mark>(Mark{other}), after = std::make_shared<Mark>(Mark{lane});
  if (other != lane) w.push(other, {nullptr, before, {}});
  Task task{other != lane ? before : nullptr, after, {}};
  if (!within) task.steps.push_back([target] { poison(target); });
  task.steps.push_back([source, target] {
    Below below;
    const_cast<at::Tensor&>(target).copy_(source);
  });
  w.push(lane, std::move(task));
  if (other != lane) w.push(other, {after, nullptr, {}});
  if (!async) {
    waits += !computing;
    w.drain(lane);
  }
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  copy(from, to, non_blocking);
  return to;
}
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) const_cast<at::Tensor&>(to).resize_(from.sizes());
  copy(from, to, true);
  return to;
}

// -- operators

using MaybeDevice = std::optional<at::Device>;
using MaybeType = std::optional<at::ScalarType>;
constexpr c10::DispatchKeySet KEYS(c10::DispatchKey::PrivateUse1);

at::Tensor empty(c10::IntArrayRef size, MaybeType dtype, std::optional<at::Layout>, MaybeDevice device,
                 std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &device_allocator, KEYS, dtype.value_or(at::kFloat), format);
}
at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, MaybeType dtype, std::optional<at::Layout>,
                         MaybeDevice device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, &device_allocator, KEYS, dtype.value_or(at::kFloat));
}
void grow(const c10::Storage& storage, size_t bytes) {
  c10::DeviceGuard guard(storage.device());
  auto& w = world();
  Lock hold(w.lock);
  auto fresh = device_allocator.allocate(bytes);
  if (auto keep = std::min(bytes, storage.nbytes())) {
    w.drain(lane_now(storage.device().index()));
    memcpy(w.inside(fresh.get()), w.inside(storage.data()), keep);
  }
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}
const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto bytes = at::detail::computeStorageNbytesContiguous(size, self.dtype().itemsize(), self.storage_offset());
  if (bytes > self.storage().nbytes()) grow(self.storage(), bytes);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}
at::Scalar local_scalar(const at::Tensor& self) {
  Below below;
  auto host = at::empty({}, self.options().device(c10::kCPU));
  copy(self.reshape({}), host, false);
  return host.item();
}
at::Tensor& set_storage(at::Tensor& self, at::Storage storage, int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, storage, offset, size, stride);
}
at::Tensor& set_whole(at::Tensor& self, at::Storage storage) {
  auto elements = int64_t(storage.nbytes() / self.dtype().itemsize());
  return set_storage(self, storage, 0, {elements}, {});
}
void record_stream(at::Tensor& self, c10::Stream stream) {
  Guard().recordDataPtrOnStream(self.storage().data_ptr(), stream);
}

struct Computing {  // in it, copies are those of a kernel
  bool outer = std::exchange(computing, true);
  ~Computing() { computing = outer; }
};
at::Tensor host(const at::Tensor& tensor) { return tensor.defined() ? tensor.cpu() : tensor; }

at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                    bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  Computing now;
  std::optional<at::Tensor> added;
  if (bias && bias->defined()) added = host(*bias);
  return at::convolution_symint(host(x), host(weight), added, stride, padding, dilation, transposed, output_padding,
                                groups).to(x.device());
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> convolve_backward(
    const at::Tensor& error, const at::Tensor& x, const at::Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, std::array<bool, 3> mask) {
  Computing now;
  std::vector<c10::SymInt> bias{error.sym_size(1)};
  auto [a, b, c] = at::convolution_backward_symint(host(error), host(x), host(weight), at::OptionalSymIntArrayRef(bias),
                                                   stride, padding, dilation, transposed, output_padding, groups, mask);
  auto back = [&](const at::Tensor& found) { return found.defined() ? found.to(x.device()) : found; };
  return {back(a), back(b), back(c)};
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {  // a kernel
  std::set<c10::DeviceIndex> found;
  for (auto& each : *stack)
    if (each.isTensor() && each.toTensor().defined() && each.toTensor().device().type() == KIND)
      found.insert(each.toTensor().device().index());
  TORCH_CHECK(found.size() < 2, "tensors of a kernel are on two devices");
  Computing now;
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("resize_", resize);
  library.impl("_local_scalar_dense", local_scalar);
  library.impl("set_.source_Storage_storage_offset", set_storage);
  library.impl("set_.source_Storage", set_whole);
  library.impl("record_stream", record_stream);
  library.impl("convolution_overrideable", convolve);
  library.impl("convolution_backward_overrideable", convolve_backward);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("view", at::native::view);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return DEVICES; }
  void setCurrentDevice(c10::DeviceIndex device) const override { device_now = device; }
  c10::DeviceIndex getCurrentDevice() const override { return device_now; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return std::exchange(device_now, device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  c10::Device getDeviceFromPtr(void*) const override { return c10::Device(KIND, device_now); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override { grow(storage, bytes); }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  c10::SetAllocator(KIND, &device_allocator);
  return true;
}();

}  // namespace

extern "C" {
void pretend_mode(int mode, int64_t value) {  // value: HASTY's slow lane, TURN's turn, RANDOM's seed
  auto& w = world();
  Lock hold(w.lock);
  if (!w.lost) w.drain_all();
  w.mode = Mode(mode);
  w.slow = value;
  w.dice.seed(value);
}
int64_t pretend_pending() {
  Lock hold(world().lock);
  int64_t tasks = 0;
  for (auto& each : world().queues) tasks += each.second.size();
  return tasks;
}
int64_t pretend_waits() { return waits; }
int64_t pretend_blocks() {
  Lock hold(world().lock);
  return world().blocks.size();
}
int64_t pretend_pinned() {
  Lock hold(world().lock);
  return world().allocated;
}
void pretend_limit(int64_t device, int64_t host) {
  Lock hold(world().lock);
  world().device_left = device;
  world().pinned_left = host;
}
void pretend_lose(int lost) {
  Lock hold(world().lock);
  world().lost = lost;
  if (lost) world().queues.clear();
}
}
