package kms

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc"
	kmsapi "k8s.io/kms/apis/v2"
	plugin "k8s.io/kms/pkg/service"

	"github.com/orlop-os/orlop/orchestrator/component"
)

// Service is the plugin. Make it with New.
type Service struct {
	key    *transit
	report func(version string, err error)

	mu   sync.Mutex
	last error // of the last Status
}

// New returns a plugin with the settings in a file (nodespec.KMS). forwarder is the path of the
// forwarder's socket; it is empty if the machine connects directly to the server. report gets the
// result of each check: the version of the key, or the error with its remedy.
func New(file, forwarder string, report func(version string, err error)) *Service {
	return &Service{key: newTransit(file, forwarder), report: report}
}

// apiVersion is the version of the protocol.
const apiVersion = "v2"

// Status checks that the key encrypts and decrypts, and returns its present version as the ID. The
// API server calls it every minute, and every ten seconds after an error. When the ID changes, the
// API server encrypts further Secrets with a new key of its own.
func (s *Service) Status(ctx context.Context) (*plugin.StatusResponse, error) {
	version, err := s.check(ctx)
	s.mu.Lock()
	s.last = err
	s.mu.Unlock()
	s.report(version, err)
	if err != nil {
		return nil, err
	}
	return &plugin.StatusResponse{Version: apiVersion, Healthz: "ok", KeyID: version}, nil
}

// LastError returns the error of the last Status.
func (s *Service) LastError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

func (s *Service) check(ctx context.Context) (version string, err error) {
	plain := []byte("orlop")
	ciphertext, version, err := s.key.encrypt(ctx, plain)
	if err != nil {
		return "", fmt.Errorf("cannot encrypt: %w", err)
	}
	again, err := s.key.decrypt(ctx, ciphertext)
	if err != nil {
		return "", fmt.Errorf("cannot decrypt: %w", err)
	}
	if !bytes.Equal(again, plain) {
		return "", &problem{errors.New("decrypts to another text than was encrypted"), "the key must be a symmetric key without derivation"}
	}
	return version, nil
}

// Encrypt encrypts a key of the API server.
func (s *Service) Encrypt(ctx context.Context, _ string, plain []byte) (*plugin.EncryptResponse, error) {
	ciphertext, version, err := s.key.encrypt(ctx, plain)
	if err != nil {
		return nil, err
	}
	return &plugin.EncryptResponse{Ciphertext: []byte(ciphertext), KeyID: version}, nil
}

// Decrypt decrypts a key of the API server.
func (s *Service) Decrypt(ctx context.Context, _ string, r *plugin.DecryptRequest) ([]byte, error) {
	return s.key.decrypt(ctx, string(r.Ciphertext))
}

// Serve serves the plugin on a Unix socket until ctx is done, and then returns nil. It calls
// serving when clients can connect.
func (s *Service) Serve(ctx context.Context, socket string, serving func()) error {
	listener, err := component.Listen(socket)
	if err != nil {
		return err
	}
	serving()
	return s.serve(ctx, listener)
}

// serve serves the plugin until ctx is done, and then returns nil.
func (s *Service) serve(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer()
	kmsapi.RegisterKeyManagementServiceServer(server, plugin.NewGRPCService(listener.Addr().String(), 0, s))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("KMS: cannot serve: %w", err)
	case <-ctx.Done():
		server.Stop()
		if err := <-ended; !errors.Is(err, grpc.ErrServerStopped) { // the server had begun to serve
			return err
		}
		return nil
	}
}
