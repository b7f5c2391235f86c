// Command qemu starts machines on a closed network, and runs test binaries under the product's
// kernel. It is wiring: the work is in packages qemu and kerneltest.
//
//	qemu kernel-test -kernel DIR PROGRAM [ARG...]   run a test binary under a kernel; for go test -exec
//	qemu run -dir DIR                               hold the cluster of DIR/spec.json in the foreground
//	qemu start -dir DIR [-spec FILE]                start a cluster in the background, or a stopped one again
//	qemu status -dir DIR                            its state as JSON
//	qemu destroy -dir DIR                           end it and remove its folder
//	qemu capture [-inside PREFIX]... FILE           list the flows of a capture that leave the closed network
//
// Exit status: 0 done, 1 failed, 2 wrong arguments; kernel-test ends with the program's own status,
// or with 125 when the program could not be run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// exitStatus is an error that only says how to end: everything was printed already.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := dispatch(ctx, os.Args[1:])
	stop()
	var status exitStatus
	switch {
	case err == nil:
	case errors.As(err, &status):
		os.Exit(int(status))
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "qemu:", err)
		os.Exit(1)
	}
}

func dispatch(ctx context.Context, args []string) error {
	commands := map[string]func(context.Context, []string) error{
		"kernel-test": kernelTest, "run": run, "start": start, "status": status, "destroy": destroy, "capture": capture,
	}
	if len(args) > 0 && commands[args[0]] != nil {
		return commands[args[0]](ctx, args[1:])
	}
	fmt.Fprintln(os.Stderr, "usage: qemu kernel-test|run|start|status|destroy|capture [-h] ...")
	return exitStatus(2)
}

// list is a flag that may be given more than once.
type list []string

func (l *list) String() string { return fmt.Sprint([]string(*l)) }

func (l *list) Set(v string) error {
	*l = append(*l, v)
	return nil
}
