// Package console displays the state of the machine on its screen and its serial lines, and accepts
// no input from either.
//
// A screen (tty0) shows a page, redrawn after each change. A serial line receives a line for each
// change, so a capture of the serial line is a timeline: append-only, no control characters, every
// line begins with "orlop: ".
//
// The page and the lines are pure functions of Status (Render, Changes), which StatusOf derives
// from the state of the machine. Console does the input and output: it finds the consoles of the
// kernel, disables their echo and keyboard, and writes to them. A console that blocks writes (a
// terminal server that stops the line) does not block the others.
//
// There is no login and no menu; keyboard input reaches no program.
package console
