//! The kernel, as PTX: any GPU since Maxwell, compiled by the driver, with no toolkit at build time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cai_dlpack::interop::cudarc::StreamGuard;
use cai_dlpack::view::View;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;

const ADD: &str = r"
.version 5.0
.target sm_50
.address_size 64
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 out, .param .u64 n)
{
    .reg .pred %p;
    .reg .f32 %f<3>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<7>;
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd0, %r0, %r1;
    cvt.u64.u32 %rd1, %r2;
    add.u64 %rd0, %rd0, %rd1;
    ld.param.u64 %rd2, [n];
    setp.ge.u64 %p, %rd0, %rd2;
    @%p ret;
    shl.b64 %rd0, %rd0, 2;
    ld.param.u64 %rd3, [a];
    ld.param.u64 %rd4, [b];
    ld.param.u64 %rd5, [out];
    add.u64 %rd3, %rd3, %rd0;
    add.u64 %rd4, %rd4, %rd0;
    add.u64 %rd5, %rd5, %rd0;
    ld.f32 %f0, [%rd3];
    ld.f32 %f1, [%rd4];
    add.f32 %f2, %f0, %f1;
    st.f32 [%rd5], %f2;
    ret;
}
";

/// The kernel on a device, compiled on first use.
fn function_of(context: &Arc<CudaContext>) -> Result<CudaFunction, DriverError> {
    static FUNCTIONS: Mutex<BTreeMap<usize, CudaFunction>> = Mutex::new(BTreeMap::new());
    let mut functions = FUNCTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(function) = functions.get(&context.ordinal()) {
        return Ok(function.clone());
    }
    let module = context.load_module(Ptx::from_src(ADD))?;
    let function = module.load_function("add")?;
    functions.insert(context.ordinal(), function.clone());
    Ok(function)
}

/// Enqueues `out = x + y`.
///
/// # Safety
/// `x` and `y` have as many floats as `out`, in one order, and are ready on `stream`.
pub(crate) unsafe fn add(
    stream: &CudaStream,
    x: &StreamGuard<'_, View<'_, f32>>,
    y: &StreamGuard<'_, View<'_, f32>>,
    out: &mut CudaSlice<f32>,
) -> Result<(), DriverError> {
    let n = out.len() as u64;
    if n == 0 {
        return Ok(());
    }
    let function = function_of(stream.context())?;
    // Blocks as many as the memory of any GPU has room for; `for_num_elems` counts to 2^32 elements.
    let config = LaunchConfig {
        grid_dim: (n.div_ceil(256) as u32, 1, 1),
        block_dim: (256, 1, 1),
        shared_mem_bytes: 0,
    };
    let mut launch = stream.launch_builder(&function);
    launch.arg(x).arg(y).arg(out).arg(&n);
    // SAFETY: the kernel reads and writes n floats of each; the contract of this function.
    unsafe { launch.launch(config) }?;
    Ok(())
}
