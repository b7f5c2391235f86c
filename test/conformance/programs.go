package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// suiteModule pins the suite to the versions of the tested components.
const suiteModule = "test/conformance/suite"

// programs are built from suiteModule: the programs that run the suite, and the programs in its
// images.
var programs = []struct{ name, pkg string }{
	{ginkgo, "github.com/onsi/ginkgo/v2/ginkgo"},
	{"agnhost", "k8s.io/kubernetes/test/images/agnhost"},
	{"nnp", "k8s.io/kubernetes/test/images/nonewprivs"},
	{"sample-apiserver", "k8s.io/sample-apiserver"},
	{"etcd", "go.etcd.io/etcd/server/v3"},
}

// The names of the test binary, of its runner, and of the registry for pulled images.
const (
	suite           = "e2e.test"
	ginkgo          = "ginkgo"
	registryProgram = "registry"
)

// buildPrograms builds the programs and the suite into a directory.
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

// versionFlags returns the linker's flags with the version of the suite, such as v1.37.2. Without
// them the version is 0.0, and tests that ask for a valid pod of the version fail
// (k8s.io/pod-security-admission/api.GetAPIVersion).
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

// commitOf returns the commit of the repository.
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
