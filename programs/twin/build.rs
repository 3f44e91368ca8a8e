//! Makes the syscalls of the executable visible to the program that it loads.

fn main() {
    println!("cargo::rustc-link-arg-bins=-rdynamic");
}
