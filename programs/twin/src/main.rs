//! Runs the native build of the program on the same input that the build for the virtual machine would get.
//!
//! Start it with `twin PROGRAM.so` and send requests on standard input: see [`wire`]. Each request runs in a separate
//! child process, with the virtual machine's addresses for input and heap, so any damage ends with that process. The
//! program's syscalls are functions of this executable. When the program calls another program, the sender of the
//! request answers with the effects of that call.

mod memory;
mod syscalls;
mod wire;

use std::{
    env,
    ffi::{CStr, CString},
    mem, process, ptr,
};

type Entrypoint = unsafe extern "C" fn(*mut u8, *const u8) -> u64;

/// Seconds of processor time that a run may take. The virtual machine counts compute units instead.
const MAX_SECONDS: libc::rlim_t = 10;

fn main() {
    let program = env::args().nth(1).unwrap_or_else(|| fail("usage: twin PROGRAM.so"));
    let entrypoint = load(&program);
    while let Some(request) = wire::request() {
        // SAFETY: this process has one thread.
        match unsafe { libc::fork() } {
            0 => run(entrypoint, &request),
            child if child > 0 => wait(child),
            _ => fail("no child process could be made"),
        }
    }
}

fn fail(message: &str) -> ! {
    eprintln!("twin: {message}");
    process::exit(1)
}

fn load(program: &str) -> Entrypoint {
    let path = CString::new(program).unwrap_or_else(|_| fail("the path has a zero byte"));
    // SAFETY: loading the program's file runs no code, and its entrypoint has this type.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        if library.is_null() {
            fail(&CStr::from_ptr(libc::dlerror()).to_string_lossy());
        }
        let entrypoint = libc::dlsym(library, c"entrypoint".as_ptr());
        if entrypoint.is_null() {
            fail("the program has no entrypoint");
        }
        mem::transmute::<*mut libc::c_void, Entrypoint>(entrypoint)
    }
}

fn run(entrypoint: Entrypoint, request: &wire::Request) -> ! {
    limit(libc::RLIMIT_CPU, MAX_SECONDS);
    limit(libc::RLIMIT_CORE, 0);
    memory::map_heap();
    let input = memory::map_input(&request.input);
    syscalls::set(&request.sysvars);
    let data = if request.passes_data { input.wrapping_add(request.data_at) } else { ptr::null_mut() };
    // SAFETY: the input is the virtual machine's serialization.
    let result = unsafe { entrypoint(input, data) };
    wire::finish(result, &request.input, memory::input(request.input.len()));
    process::exit(0)
}

fn limit(resource: libc::__rlimit_resource_t, most: libc::rlim_t) {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the pointer refers to a value of the right type.
    if unsafe { libc::setrlimit(resource, &limit) } != 0 {
        fail("a limit could not be set");
    }
}

/// Waits for a run. Reports the signal that ended it if it aborted or accessed memory outside the program's.
fn wait(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: the pointer refers to a value of the right type.
    if unsafe { libc::waitpid(child, &mut status, 0) } != child {
        fail("the run was lost");
    }
    if libc::WIFSIGNALED(status) {
        wire::crashed(libc::WTERMSIG(status));
    } else if libc::WEXITSTATUS(status) != 0 {
        process::exit(1);
    }
}
