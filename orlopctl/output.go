package main

import (
	"os"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/secretfile"
)

// vacant returns an error if the file exists and force is not set. Commands call it before they
// call the machine, because the call can change the machine.
func vacant(file string, force bool) error {
	if _, err := os.Lstat(file); err == nil && !force {
		return exit.Usagef("%s: cannot write: it exists; --force replaces it", file)
	}
	return nil
}

// vacantOutput is vacant for the output of writeOutput. It returns nil for the standard output
// ("-").
func vacantOutput(out string, force bool) error {
	if out == "-" {
		return nil
	}
	return vacant(out, force)
}

// writeOutput writes a text to a file that only its owner can read, and prints a message about the
// use of the file. For "-" it writes only the text, to the standard output.
func writeOutput(ios *iostreams.Streams, out string, text []byte, about string) error {
	if out == "-" {
		ios.Printf("%s", text)
		return nil
	}
	if err := secretfile.Write(out, text, true); err != nil {
		return err
	}
	ios.Printf("wrote %s: %s\n", out, about)
	return nil
}
