//! Exposes the executable's syscalls to the program that it loads.

fn main() {
    println!("cargo::rustc-link-arg-bins=-rdynamic");
}
