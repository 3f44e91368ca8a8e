//! The native build: reads one input in hexadecimal per line and prints its results in hexadecimal on one line.

use std::io;

fn main() -> io::Result<()> {
    for line in io::stdin().lines() {
        let line = line?;
        let byte = |i: usize| u8::from_str_radix(&line[2 * i..2 * i + 2], 16).expect("hexadecimal input");
        let data: Vec<u8> = (0..line.len() / 2).map(byte).collect();
        let results: String = torture::run(&data).iter().map(|byte| format!("{byte:02x}")).collect();
        println!("{results}");
    }
    Ok(())
}
