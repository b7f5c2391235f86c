package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

const (
	clusterName = "conformance"
	// creation bounds the creation of the cluster, and teardown its end.
	creation = 20 * time.Minute
	teardown = 2 * time.Minute
)

// cluster is two machines, and orlopctl's way to them.
type cluster struct {
	bin, image string
	dir        string // of orlopctl's own files
	memoryMiB  int
}

func (c cluster) kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// create makes it anew.
func (c cluster) create(ctx context.Context) error {
	if err := c.destroy(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return fmt.Errorf("cluster: cannot empty its folder: %w", err)
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("cluster: cannot make its folder: %w", err)
	}
	return c.orlopctl(ctx, creation, "cluster", "create", clusterName, "--image", c.image, "--workers", "1", "--memory", strconv.Itoa(c.memoryMiB))
}

// load imports images on both machines.
func (c cluster) load(ctx context.Context, archive string) error {
	for _, machine := range []string{clusterName, clusterName + "-w1"} {
		if err := c.orlopctl(ctx, creation, "--context", machine, "image", "import", archive); err != nil {
			return err
		}
	}
	return nil
}

// healthy waits until both machines are well again, for what a batch left.
func (c cluster) healthy(ctx context.Context) error {
	for _, machine := range []string{clusterName, clusterName + "-w1"} {
		if err := c.orlopctl(ctx, creation, "--context", machine, "health", "--timeout", "10m"); err != nil {
			return err
		}
	}
	return nil
}

// destroy ends it if it is there.
func (c cluster) destroy(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(c.dir, "clusters", clusterName)); os.IsNotExist(err) {
		return nil
	}
	return c.orlopctl(ctx, teardown, "cluster", "destroy", clusterName)
}

func (c cluster) orlopctl(ctx context.Context, limit time.Duration, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	program := exec.CommandContext(ctx, filepath.Join(c.bin, "orlopctl"), args...)
	program.Env = append(os.Environ(), "ORLOP_CONFIG="+filepath.Join(c.dir, "config"), "KUBECONFIG="+c.kubeconfig())
	program.Stdout, program.Stderr = os.Stdout, os.Stderr
	if err := program.Run(); err != nil {
		return fmt.Errorf("orlopctl %v: %w", args, err)
	}
	return nil
}
