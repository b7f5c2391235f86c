package boot

import "encoding/binary"

// guardSection is the name of the section with the guard.
const guardSection = ".orlop"

// guardCode is the code that the firmware starts in a boot image. It clears the load options of the
// image, and jumps to systemd's stub.
//
// Boot loaders pass load options; iPXE, for example, always passes the name of the image. Without
// Secure Boot, the stub would use the load options in place of the command line in the image
// (systemd 257, src/boot/stub.c, process_arguments).
//
// The code is position-independent, for x86-64 and the calling convention of UEFI (UEFI 2.10,
// 2.3.4): rcx has the handle of the image, rdx the system table. The comments are the source for
// the GNU assembler, with .intel_syntax noprefix.
var guardCode = []byte{
	0x51, // push rcx
	0x52, // push rdx
	// sub rsp, 40                    space for the callee and the result at rsp+32; aligned
	0x48, 0x83, 0xec, 0x28,
	0x48, 0x8b, 0x42, 0x60, // mov rax, [rdx+96]              EFI_SYSTEM_TABLE.BootServices
	0x48, 0x8d, 0x15, 0x2c, 0x00, 0x00, 0x00, // lea rdx, [rip+guid]
	0x4c, 0x8d, 0x44, 0x24, 0x20, // lea r8, [rsp+32]
	0xff, 0x90, 0x98, 0x00, 0x00, 0x00, // call [rax+152]     EFI_BOOT_SERVICES.HandleProtocol
	0x48, 0x85, 0xc0, // test rax, rax
	0x75, 0x17, // jnz failed
	0x48, 0x8b, 0x44, 0x24, 0x20, // mov rax, [rsp+32]
	// mov dword ptr [rax+48], 0 EFI_LOADED_IMAGE_PROTOCOL.LoadOptionsSize
	0xc7, 0x40, 0x30, 0x00, 0x00, 0x00, 0x00,
	0x48, 0x83, 0xc4, 0x28, // add rsp, 40
	0x5a,                         // pop rdx
	0x59,                         // pop rcx
	0xe9, 0x00, 0x00, 0x00, 0x00, // jmp stub
	// failed: return the status (rax) to the firmware, and do not start the stub
	0x48, 0x83, 0xc4, 0x38, // add rsp, 56
	0xc3, // ret
	// guid: EFI_LOADED_IMAGE_PROTOCOL_GUID
	0xa1, 0x31, 0x1b, 0x5b, 0x62, 0x95, 0xd2, 0x11, 0x8e, 0x3f, 0x00, 0xa0, 0xc9, 0x69, 0x72, 0x3b,
}

// guardJump is the index in guardCode of the operand of `jmp stub`: 4 bytes with the distance from
// the end of the operand to the stub.
const guardJump = 52

// guard returns the code for a guard at address `at` that jumps to address `entry`, the entry point
// of the stub. Both addresses are relative to the beginning of the image.
func guard(at, entry uint32) []byte {
	code := append([]byte{}, guardCode...)
	binary.LittleEndian.PutUint32(code[guardJump:], entry-(at+guardJump+4))
	return code
}
