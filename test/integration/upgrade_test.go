package integration

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/rogpeppe/go-internal/testscript"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/registry/remote"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/test/bundlesender"
)

// setVerb changes a field in the spec of a document. The value null removes the field.
func (s *story) setVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, 3, "set DOCUMENTS KIND.FIELD YAML")
	path := strings.Split(args[1], ".")
	var value any
	ts.Check(yaml.Unmarshal([]byte(args[2]), &value))
	edit(ts, args[0], path[0], func(document map[string]any) {
		at, _ := document["spec"].(map[string]any)
		for _, field := range path[1 : len(path)-1] {
			at, _ = at[field].(map[string]any)
		}
		if last := path[len(path)-1]; value == nil {
			delete(at, last)
		} else {
			at[last] = value
		}
	})
}

// cutVerb uploads a bundle and cuts the power as soon as the given operation of the upgrade begins
// (machined/upgrade names the operations).
func (s *story) cutVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, 3, "cut-upgrade NAME BUNDLE OPERATION")
	file, err := os.Open(ts.MkAbs(args[1]))
	ts.Check(err)
	defer file.Close()
	c := s.client(ts)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	events, err := c.Machine.Events(ctx, &api.EventsRequest{Follow: true})
	ts.Check(err)
	sent := make(chan error, 1)
	go func() {
		_, err := bundlesender.Send(ctx, c, file)
		if err != nil {
			cancel() // the upload has failed, so the operation will not start
		}
		sent <- err
	}()
	begun, doing := time.Now(), ""
	for !strings.HasPrefix(doing, args[2]) {
		e, err := events.Recv()
		if err != nil {
			ts.Fatalf("cut-upgrade: operation %q did not begin, the last was %q: %v; the upgrade: %v", args[2], doing, err, <-sent)
		}
		if e.Source == "upgrade" && e.Kind == "operation" {
			doing = e.Message
		}
	}
	s.machine(ts, args[0]).PowerCut()
	cancel()
	<-sent
	s.note("power of %s is cut after %.1fs, while it does: %s", args[0], time.Since(begun).Seconds(), doing)
}

// abandonVerb runs orlopctl upgrade with a bundle. It kills orlopctl as soon as the machine has
// processed MIB MiB in the given operation. The output of orlopctl goes to stdout.
func (s *story) abandonVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, 3, "abandon BUNDLE OPERATION MIB")
	mib, err := strconv.ParseInt(args[2], 10, 64)
	ts.Check(err)
	c := s.client(ts)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var said bytes.Buffer
	operator := exec.Command(filepath.Join(s.tools, "orlopctl"), "upgrade", "-f", ts.MkAbs(args[0]))
	operator.Env, operator.Stdout, operator.Stderr = s.env, &said, &said
	ts.Check(operator.Start())
	ended := make(chan error, 1)
	go func() {
		err := operator.Wait()
		cancel()
		ended <- err
	}()
	watch, err := c.Upgrade.Watch(ctx, &api.WatchUpgradeRequest{})
	ts.Check(err)
	now := &api.UpgradeStatus{}
	for !strings.HasPrefix(now.Operation, args[1]) || now.Done < mib<<20 {
		if now, err = watch.Recv(); err != nil {
			_ = operator.Process.Kill()
			ts.Fatalf("abandon: operation %q did not process the given number of MiB: %v; orlopctl: %v: %s", args[1], err, <-ended, said.String())
		}
	}
	ts.Check(operator.Process.Kill())
	<-ended
	s.note("orlopctl is killed while the machine does: %s (%d of %d bytes)", now.Operation, now.Done, now.Total)
	_, err = ts.Stdout().Write(said.Bytes())
	ts.Check(err)
}

// atOnceVerb runs orlopctl for two machines at the same time, as two operators would do. Exactly
// one of the calls must succeed.
func (s *story) atOnceVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 4, -1, "at-once NAME NAME orlopctl ARGS")
	if args[2] != "orlopctl" {
		ts.Fatalf("at-once: the command must be orlopctl")
	}
	var failed [2]error
	var said [2]bytes.Buffer
	var calling sync.WaitGroup
	for i, name := range args[:2] {
		operator := exec.Command(filepath.Join(s.tools, "orlopctl"), append(slices.Clone(args[3:]), "-n", ts.Getenv("IP_"+name))...)
		operator.Env, operator.Stdout, operator.Stderr = s.env, &said[i], &said[i]
		calling.Go(func() { failed[i] = operator.Run() })
	}
	calling.Wait()
	if (failed[0] == nil) == (failed[1] == nil) {
		ts.Fatalf("at-once: exactly one call must succeed; %s: %v: %s; %s: %v: %s", args[0], failed[0], said[0].String(), args[1], failed[1], said[1].String())
	}
	first, second := 0, 1
	if failed[0] != nil {
		first, second = 1, 0
	}
	ts.Setenv("FIRST", args[first])
	ts.Setenv("SECOND", args[second])
	s.note("%s went first, and %s said: %s", args[first], args[second], strings.TrimSpace(said[second].String()))
	_, err := ts.Stderr().Write(said[second].Bytes())
	ts.Check(err)
}

// registryVerb starts a registry with a bundle in the closed network, and writes the CA of the
// registry to a file.
func (s *story) registryVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, 2, "registry BUNDLE CA")
	ca := s.startRegistry(ts, args[:1])
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), ca, 0o600))
}

// releasesVerb starts a registry with bundles in the closed network. It writes the patch that makes
// a machine use the registry.
func (s *story) releasesVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, -1, "releases PATCH BUNDLE…")
	ca := s.startRegistry(ts, args[1:])
	writeRegistries(ts, args[0], map[string]any{"address": ts.Getenv("REGISTRY"), "ca": string(ca)})
	version, err := os.ReadFile("../../profiles/VERSION")
	ts.Check(err)
	ts.Setenv("VERSION", strings.TrimSpace(string(version)))
}

// writeRegistries writes the patch that makes a machine use the registries.
func writeRegistries(ts *testscript.TestScript, file string, registries ...map[string]any) {
	patch, err := yaml.Marshal(map[string]any{"kind": "Machine", "spec": map[string]any{"registries": registries}})
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(file), patch, 0o600))
}

// startRegistry starts a registry in the closed network with the bundles as orlop/test:1,
// orlop/test:2 and so on. It sets $REGISTRY to the address, and $DIGEST_1, $DIGEST_2 and so on to
// the digests. It returns the CA of the registry as PEM.
func (s *story) startRegistry(ts *testscript.TestScript, bundles []string) (ca []byte) {
	handler := registryWith(ts, "orlop/test:1", func(ctx context.Context, repository *remote.Repository) {
		for i, name := range bundles {
			content, err := os.ReadFile(ts.MkAbs(name))
			ts.Check(err)
			layer := ocispec.Descriptor{MediaType: bundle.TypeArchive, Digest: digest.FromBytes(content), Size: int64(len(content))}
			ts.Check(repository.Push(ctx, layer, bytes.NewReader(content)))
			manifest, err := oras.PackManifest(ctx, repository, oras.PackManifestVersion1_1, bundle.TypeBundle, oras.PackManifestOptions{Layers: []ocispec.Descriptor{layer}})
			ts.Check(err)
			ts.Check(repository.Tag(ctx, manifest, strconv.Itoa(i+1)))
			ts.Setenv("DIGEST_"+strconv.Itoa(i+1), manifest.Digest.String())
		}
	})
	host, err := s.network.NewHost("registry", netip.Addr{})
	ts.Check(err)
	ca, err = serveTLS(host, handler)
	ts.Check(err)
	ts.Setenv("REGISTRY", host.Addr().String())
	s.note("the registry %s holds %s", host.Addr(), strings.Join(bundles, ", "))
	return ca
}
