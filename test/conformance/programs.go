package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// suiteModule is the directory of the Go module that pins the suite to the versions of the tested
// components.
const suiteModule = "test/conformance/suite"

// programs are the programs that are built from suiteModule: the ginkgo command, and the programs
// in the images of the suite.
var programs = []struct{ name, pkg string }{
	{ginkgo, "github.com/onsi/ginkgo/v2/ginkgo"},
	{"agnhost", "k8s.io/kubernetes/test/images/agnhost"},
	{"nnp", "k8s.io/kubernetes/test/images/nonewprivs"},
	{"sample-apiserver", "k8s.io/sample-apiserver"},
	{"etcd", "go.etcd.io/etcd/server/v3"},
}

// These are the names of the suite's executable, of the command that runs it, and of the registry.
const (
	suite           = "e2e.test"
	ginkgo          = "ginkgo"
	registryProgram = "registry"
)

// buildPrograms builds the programs, the registry and the suite into dir.
func buildPrograms(ctx context.Context, dir string) error {
	for _, p := range programs {
		if _, err := goTool(ctx, "build", "-tags", "providerless", "-ldflags", "-s -w", "-o", filepath.Join(dir, p.name), p.pkg); err != nil {
			return err
		}
	}
	registry := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, registryProgram), "./test/conformance/registry")
	registry.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := registry.CombinedOutput(); err != nil {
		return fmt.Errorf("registry: cannot build: %w: %s", err, out)
	}
	version, err := goTool(ctx, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	_, err = goTool(ctx, "test", "-c", "-vet=off", "-tags", "providerless", "-ldflags", "-s -w "+versionFlags(version), "-o", filepath.Join(dir, suite), "k8s.io/kubernetes/test/e2e")
	return err
}

// versionFlags returns the linker flags that set the version of the suite, such as v1.37.2. Without
// these flags the version is 0.0, and the tests fail that create a pod according to the rules of
// that version (k8s.io/pod-security-admission/api.GetAPIVersion).
func versionFlags(version string) string {
	var flags []string
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, v := range []struct{ name, value string }{{"gitVersion", version}, {"gitMajor", major}, {"gitMinor", minor}} {
			flags = append(flags, fmt.Sprintf("-X %s.%s=%s", pkg, v.name, v.value))
		}
	}
	return strings.Join(flags, " ")
}

// moduleDir returns the directory with the sources of a module.
func moduleDir(ctx context.Context, module string) (string, error) {
	return goTool(ctx, "list", "-m", "-f", "{{.Dir}}", module)
}

// commitOf returns the abbreviated commit of the repository, with -dirty for uncommitted changes.
func commitOf(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").Output()
	if err != nil {
		return "", fmt.Errorf("git describe: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

func goTool(ctx context.Context, args ...string) (string, error) {
	c := exec.CommandContext(ctx, "go", args...)
	c.Dir = suiteModule
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false", "GOWORK=off")
	var problems strings.Builder
	c.Stderr = &problems
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(problems.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
