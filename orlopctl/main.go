// Command orlopctl is the operator's tool for Orlop OS machines: it generates keys and
// configurations, applies them, shows what a machine does, and starts local machines in QEMU.
//
// It talks to machines over their gRPC API and over nothing else. It keeps one file of its own,
// ~/.orlop/config, with the machines it knows (contexts). Each file of this package holds the
// commands of one noun.
//
// It holds no policy: what a configuration may say is decided by pkg/config and by the machine, and
// what a caller may do by the machine's door.
package main

import (
	"io"
	"os"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the program without its process: it returns the exit status.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return (&tool{stdin: stdin, stdout: stdout, stderr: stderr}).run(args)
}

func (t *tool) run(args []string) int {
	t.args = args
	root := t.rootCommand()
	root.SetArgs(args)
	err := root.Execute()
	if err != nil && !t.started {
		// Cobra refused the command line before any command began.
		hint := "see `orlopctl --help`"
		if here := elsewhere(err); here != "" {
			hint = here
		}
		err = &exitError{code: exitUsage, err: err, hint: hint}
	}
	return t.report(err)
}
