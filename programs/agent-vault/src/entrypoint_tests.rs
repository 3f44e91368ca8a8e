#![allow(clippy::arithmetic_side_effects, clippy::cast_possible_truncation)] // small numbers

use super::*;
use anchor_lang::{
    cursor::AccountCursor,
    testing::{AccountRecord, SbfInputBuffer},
};
use core::ptr::{from_mut, null};

/// Accounts of every alignment of the data, this program in place of four optional ones, and `others`. The last record
/// stands for the instruction data that follow the accounts.
fn input(others: &[AccountRecord]) -> SbfInputBuffer {
    let account = |number: usize, address: [u8; 32]| AccountRecord::NonDup {
        address,
        owner: [1; 32],
        lamports: 1,
        is_signer: false,
        is_writable: true,
        executable: false,
        data_len: number * 3,
    };
    let mut records: Vec<_> = (0..12).map(|number| account(number, [number as u8; 32])).collect();
    records.push(account(0, ID.to_bytes()));
    records.extend([AccountRecord::Dup { index: 12 }; 4]);
    records.extend_from_slice(others);
    records.push(account(8, [9; 32]));
    let mut input = SbfInputBuffer::build(&records);
    let count = records.len() as u64 - 1;
    input.bytes_mut()[..LENGTH].copy_from_slice(&count.to_le_bytes());
    input
}

/// Writes instruction data after the accounts.
fn write_data(input: &mut SbfInputBuffer, data: &[u8]) {
    let at = *input.record_offsets.last().unwrap();
    let parts = [&(data.len() as u64).to_le_bytes()[..], data, ID.as_ref()].concat();
    input.bytes_mut()[at..at + parts.len()].copy_from_slice(&parts);
}

fn payment() -> Vec<u8> {
    [&PAYMENT.to_le_bytes()[..], &[7; 24]].concat()
}

/// Runs `answer` as an old runtime calls it, and returns its result and the place that it found for the data.
fn answered(input: &mut SbfInputBuffer) -> (Option<u64>, usize) {
    let start = input.as_mut_ptr();
    let mut data = null();
    // SAFETY: the buffer has the form of the runtime's.
    let code = unsafe { answer(start, &mut data) };
    (code, data as usize - start as usize)
}

#[test]
fn walk_finds_the_accounts_that_the_framework_finds() {
    for others in [&[][..], &[AccountRecord::Dup { index: 3 }], &[AccountRecord::Dup { index: 16 }; 5]] {
        let mut input = input(others);
        let start = input.as_mut_ptr();
        let mut lookup = [const { MaybeUninit::<AccountView>::uninit() }; 256];
        let mut named =
            Named { views: [const { MaybeUninit::uninit() }; NAMED], own: NONE_YET, repeats: false };
        // SAFETY: the buffer has the form of the runtime's and contains the named accounts.
        let (walked, views, theirs) = unsafe {
            let walked = named.walk(start.add(LENGTH));
            let mut cursor = AccountCursor::new(start, from_mut(&mut lookup).cast());
            let theirs: [AccountView; NAMED] = core::array::from_fn(|_| cursor.next());
            (walked, named.views.map(|view| view.assume_init()), theirs)
        };
        for (ours, theirs) in views.iter().zip(&theirs) {
            assert_eq!(ours.account_ptr(), theirs.account_ptr());
        }
        assert_eq!(walked as usize - start as usize, input.record_offsets[NAMED]);
        assert_eq!((named.own, named.repeats), (12, false));
        // SAFETY: the remaining accounts follow the named ones.
        let data = unsafe { behind_all(walked, others.len() as u64) };
        assert_eq!(data as usize - start as usize, input.record_offsets.last().unwrap() + LENGTH);
    }
}

#[test]
fn repeated_account_other_than_this_program_goes_on_to_the_framework() {
    let account = |index| AccountRecord::Dup { index };
    let all = |index| {
        let mut input = SbfInputBuffer::build(
            &[
                &(0..16)
                    .map(|number| AccountRecord::NonDup {
                        address: [number; 32],
                        owner: [1; 32],
                        lamports: 1,
                        is_signer: false,
                        is_writable: true,
                        executable: false,
                        data_len: 5,
                    })
                    .collect::<Vec<_>>()[..],
                &[account(index)],
            ]
            .concat(),
        );
        let mut named =
            Named { views: [const { MaybeUninit::uninit() }; NAMED], own: NONE_YET, repeats: false };
        // SAFETY: the buffer has the form of the runtime's and contains the named accounts.
        unsafe { named.walk(input.as_mut_ptr().add(LENGTH)) };
        named.repeats
    };
    assert!((0..16).all(all));
}

#[test]
fn only_exact_payments_are_taken_from_the_framework() {
    let refused = u64::from(ProgramError::MissingRequiredSignature);
    for others in [&[][..], &[AccountRecord::Dup { index: 3 }]] {
        let mut input = input(others);
        let place = input.record_offsets.last().unwrap() + LENGTH;
        write_data(&mut input, &payment());
        assert_eq!(answered(&mut input), (Some(refused), place));
    }
    for data in [&payment()[..31], &[&payment()[..], &[0]].concat(), &[0; 32]] {
        let mut input = input(&[]);
        let place = input.record_offsets.last().unwrap() + LENGTH;
        write_data(&mut input, data);
        assert_eq!(answered(&mut input), (None, place));
    }
}
