// Command previous is the etcd of release 0.1.0: it serves with a configuration file until SIGTERM.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	if err := serve(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(file string) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	config, err := embed.ConfigFromFile(file)
	if err != nil {
		return err
	}
	server, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	select {
	case <-server.Server.StoppingNotify():
		return errors.New("the server has stopped by itself")
	case err := <-server.Err():
		return err
	case <-stop:
		server.Server.HardStop() // Close waits until the server is ready
		return nil
	}
}
