// Package console shows what the machine is doing on its screen and its serial lines, and takes no
// input from either.
//
// A screen (tty0) shows one page, drawn anew when something changes. A serial line gets a line for
// each change, so that what was captured from it is a timeline: append-only, no control characters,
// every line begins with "orlop: ".
//
// Both are pure functions of Status (Render, Changes). Console is the edge: it finds the consoles
// that the kernel uses, takes echo and keyboard away from them, and writes. A console that does not
// take what is written (a terminal server that holds up the line) holds up nobody else.
//
// There is no login here and no menu; nothing that is typed reaches any program.
package console
