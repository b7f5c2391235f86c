package kms

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Name is the component's name.
const Name = "kms"

// Components describes the component. The list is empty without a key manager.
func Components(spec nodespec.Spec) []component.Component {
	if !configured(spec) {
		return nil
	}
	return []component.Component{{Process: component.API, Name: Name}}
}

func configured(spec nodespec.Spec) bool {
	return spec.Node.ControlPlane && spec.Kubernetes.APIServer.KMS != nil
}

// Run serves the plugin for the API server of the process, and announces the state of the key
// manager. If the key manager fails, the component stays ready and reports a problem.
func Run(ctx context.Context, env component.Env, serving func()) error {
	file := filepath.Join(env.Dirs.API, nodespec.KMSFile)
	s := New(file, forwarder(env.Spec), func(version string, err error) {
		env.Announce(Name, true, describe(file, version, err))
	})
	return s.Serve(ctx, env.Dirs.KMSSocket(), func() {
		env.Announce(Name, true, "the API server has not used the key manager yet")
		serving()
	})
}

// describe returns the detail of the component.
func describe(file, version string, err error) string {
	key := "the key manager"
	var k nodespec.KMS
	if content, err := os.ReadFile(file); err == nil && json.Unmarshal(content, &k) == nil {
		key = fmt.Sprintf("%s, key %s/%s", k.Endpoint, k.Mount, k.Key)
	}
	if err != nil {
		return fmt.Sprintf("%s%s: %v (meanwhile no Secret can be written, and only Secrets that the API server has read since its start can be read)", nodespec.ProblemPrefix, key, err)
	}
	return key + ", version " + version
}

// forwarder returns the path of the forwarder's socket. It is empty if the machine connects
// directly to the server.
func forwarder(spec nodespec.Spec) string {
	if spec.Network.Forwarder {
		return paths.ForwarderSocket
	}
	return ""
}

// ForCommand serves the plugin for a command that runs beside the API server, or while the API
// server does not run. It returns the path of an EncryptionConfiguration with the socket of this
// plugin, a function last for the last error of the key manager (nil if there is none), and a
// function that ends the plugin. Without a key manager, file is the file of the API server.
func ForCommand(ctx context.Context, spec nodespec.Spec, d dirs.Dirs) (file string, last func() error, stop func(), err error) {
	file, last = filepath.Join(d.API, nodespec.Encryption), func() error { return nil }
	if !configured(spec) {
		return file, last, func() {}, nil
	}
	own, err := os.MkdirTemp(d.API, "kms-")
	if err != nil {
		return "", nil, nil, fmt.Errorf("KMS: cannot create a directory: %w", err)
	}
	socket, copied := filepath.Join(own, nodespec.KMSSocket), filepath.Join(own, nodespec.Encryption)
	var listener net.Listener
	if err = copyWithSocket(file, copied, d.KMSSocket(), socket); err == nil {
		listener, err = component.Listen(socket)
	}
	if err != nil {
		_ = os.RemoveAll(own) // the first error is returned
		return "", nil, nil, err
	}
	s := New(filepath.Join(d.API, nodespec.KMSFile), forwarder(spec), func(string, error) {})
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.serve(ctx, listener) // after an error, the requests of the command fail
	}()
	return copied, s.LastError, func() {
		cancel()
		<-ended
		_ = os.RemoveAll(own) // a file that remains is on a tmpfs, and so removed at the next boot
	}, nil
}

// copyWithSocket copies an EncryptionConfiguration, with another socket of the key manager.
func copyWithSocket(from, to, socket, other string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("encryption keys: cannot read: %w", err)
	}
	changed := bytes.ReplaceAll(text, []byte("unix://"+socket), []byte("unix://"+other))
	if bytes.Equal(changed, text) {
		return fmt.Errorf("encryption keys: %s has no key manager yet; wait for the restart of the API server (`orlopctl health`)", from)
	}
	return os.WriteFile(to, changed, 0o400)
}
