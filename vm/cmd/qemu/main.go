// Command qemu starts machines on a closed network, and runs test binaries under the product's
// kernel. Packages vm and kerneltest do the work.
//
//	qemu kernel-test -kernel DIR PROGRAM [ARG...]   run a test binary, for go test -exec
//	qemu run -dir DIR                               run the cluster of DIR/spec.json in foreground
//	qemu start -dir DIR [-spec FILE]                start a new or stopped cluster, and print its
//	                                                state as JSON, with the address and the
//	                                                certificate of its Redfish service
//	qemu status -dir DIR                            print the state of a cluster as JSON
//	qemu destroy -dir DIR                           end a cluster and remove its directory
//	qemu capture [-inside PREFIX]... FILE           list the flows that leave the closed network
//
// Exit status: 0 success, 1 failure, 2 wrong arguments. kernel-test ends with the exit status of
// PROGRAM, or with 125 if PROGRAM could not be run.
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

// exitStatus is an error that only carries the exit status, because the messages are already
// printed.
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
