package kms

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/sanitize"
)

const (
	// requestTimeout bounds a request to the server. It is so short that a login and a request fit
	// into nodespec.KMSTimeout, the time for which the API server waits for the plugin.
	requestTimeout = 4 * time.Second
	// maxAnswer is the maximum size of an answer, in bytes. An encrypted key has about 100 bytes.
	maxAnswer = 64 << 10
	// minTokenAge is the smallest age of a token at which a rejected request leads to another
	// login. Without a limit, a role without rights would get a token every ten seconds.
	minTokenAge = time.Minute
)

// transit is a client of the server for one key. Its settings are in a file, which transit reads
// again before each request, so a change of the credentials or of the address needs no restart.
type transit struct {
	file      string // a nodespec.KMS
	forwarder string // the socket of the forwarder; empty: direct connections
	now       func() time.Time

	lock    chan struct{} // of capacity 1; protects the fields below
	content []byte        // of the file
	open    *session
}

// session is a login with the present settings.
type session struct {
	nodespec.KMS
	http  *http.Client
	token string    // empty before the login
	since time.Time // of the login
	until time.Time // when another login is due; zero: never
}

func newTransit(file, forwarder string) *transit {
	return &transit{file: file, forwarder: forwarder, now: time.Now, lock: make(chan struct{}, 1)}
}

// problem is an error with the next step of the operator.
type problem struct {
	cause  error
	remedy string
}

func (p *problem) Error() string { return p.cause.Error() + "; " + p.remedy }

func (p *problem) Unwrap() error { return p.cause }

// refusal is an answer of the server other than success.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return fmt.Sprintf("it answers %d: %s", r.status, r.text) }

// encrypt returns the ciphertext, in the form vault:vVERSION:…, and the version of the key.
func (t *transit) encrypt(ctx context.Context, plain []byte) (ciphertext, version string, err error) {
	var out struct {
		Data struct{ Ciphertext string }
	}
	if err := t.call(ctx, "encrypt", map[string]string{"plaintext": base64.StdEncoding.EncodeToString(plain)}, &out); err != nil {
		return "", "", err
	}
	version, err = keyVersion(out.Data.Ciphertext)
	return out.Data.Ciphertext, version, err
}

// keyVersion returns the version of the key in a ciphertext, in the form v3.
func keyVersion(ciphertext string) (string, error) {
	parts := strings.SplitN(ciphertext, ":", 3)
	if len(parts) != 3 || len(parts[1]) < 2 || len(parts[1]) > 20 || parts[1][0] != 'v' || strings.Trim(parts[1][1:], "0123456789") != "" || parts[2] == "" {
		return "", errors.New("the server answers without a ciphertext of Transit; is the endpoint that of a Vault or OpenBao?")
	}
	return parts[1], nil
}

// decrypt returns the plaintext of a ciphertext of any version of the key.
func (t *transit) decrypt(ctx context.Context, ciphertext string) ([]byte, error) {
	var out struct {
		Data struct{ Plaintext []byte } // base64
	}
	if err := t.call(ctx, "decrypt", map[string]string{"ciphertext": ciphertext}, &out); err != nil {
		return nil, err
	}
	return out.Data.Plaintext, nil
}

// call performs an operation of the key. If the server rejects the token, call logs in again and
// repeats the operation.
func (t *transit) call(ctx context.Context, operation string, in, out any) error {
	s, err := t.login(ctx, "")
	if err != nil {
		return err
	}
	path := s.Mount + "/" + operation + "/" + s.Key
	err = s.post(ctx, path, in, out)
	if isForbidden(err) && t.now().Sub(s.since) >= minTokenAge {
		if s, err = t.login(ctx, s.token); err != nil {
			return err
		}
		err = s.post(ctx, path, in, out)
	}
	return s.explain(err, path)
}

// isForbidden reports whether the server does not know the token, or the token lacks a right; the
// answer to both is the same.
func isForbidden(err error) bool {
	var r *refusal
	return errors.As(err, &r) && r.status == http.StatusForbidden
}

// login returns a session. It logs in if there is no token, if two thirds of the lifetime of the
// token are over, or if the token is the rejected token.
func (t *transit) login(ctx context.Context, rejected string) (*session, error) {
	release, err := limits.Acquire(ctx, t.lock, "login")
	if err != nil {
		return nil, err
	}
	defer release()
	s, err := t.currentSession()
	if err != nil {
		return nil, &problem{err, "apply the configuration again (Cluster.spec.kubernetes.apiServer.kms)"}
	}
	if s.token != "" && s.token != rejected && (s.until.IsZero() || t.now().Before(s.until)) {
		return s, nil
	}
	path, in := "auth/", any(nil)
	switch {
	case s.AppRole != nil:
		path, in = path+s.AppRole.Mount+"/login", map[string]string{"role_id": s.AppRole.RoleID, "secret_id": s.AppRole.SecretID}
	case s.Certificate.Role != "":
		path, in = path+s.Certificate.Mount+"/login", map[string]string{"name": s.Certificate.Role}
	default:
		path, in = path+s.Certificate.Mount+"/login", map[string]string{}
	}
	var out struct {
		Auth struct {
			Token    string `json:"client_token"`
			Duration int    `json:"lease_duration"` // seconds; 0: unlimited
		}
	}
	anonymous := *s
	anonymous.token = ""
	if err := anonymous.post(ctx, path, in, &out); err != nil {
		return nil, s.explainLogin(err)
	}
	if out.Auth.Token == "" || strings.ContainsFunc(out.Auth.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, s.explainLogin(errors.New("it answers without a token"))
	}
	next := anonymous
	next.token, next.since, next.until = out.Auth.Token, t.now(), time.Time{}
	if d := time.Duration(out.Auth.Duration) * time.Second; d > 0 {
		next.until = next.since.Add(d / 3 * 2)
	}
	t.open = &next
	return t.open, nil
}

// currentSession returns the session for the settings in the file. It makes a session without a
// token if the file has changed.
func (t *transit) currentSession() (*session, error) {
	content, err := os.ReadFile(t.file)
	if err != nil {
		return nil, err
	}
	if t.open != nil && bytes.Equal(content, t.content) {
		return t.open, nil
	}
	s := &session{}
	if err := json.Unmarshal(content, &s.KMS); err != nil {
		return nil, errors.New(t.file + " is damaged") // the error could contain a secret
	}
	if s.AppRole == nil && s.Certificate == nil {
		return nil, errors.New(t.file + " has no credentials")
	}
	transport, err := t.transport(s.KMS)
	if err != nil {
		return nil, err
	}
	if t.open != nil {
		t.open.http.CloseIdleConnections()
	}
	s.http = &http.Client{
		Transport: transport,
		// A redirect could lead the token to another server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	t.content, t.open = content, s
	return s, nil
}

// transport returns the connections to the server.
func (t *transit) transport(k nodespec.KMS) (*http.Transport, error) {
	dialer := &net.Dialer{Timeout: requestTimeout}
	transport := &http.Transport{
		DialContext: dialer.DialContext, TLSHandshakeTimeout: requestTimeout, IdleConnTimeout: 2 * time.Minute, MaxConnsPerHost: 8, MaxResponseHeaderBytes: maxAnswer,
		DisableCompression: true, // a small compressed answer could become large
	}
	egressConfig := egress.Config{}
	roots, err := egressConfig.Roots(k.CAs, false)
	if err != nil {
		return nil, err
	}
	if err := egressConfig.Complete(transport, roots); err != nil {
		return nil, err
	}
	if c := k.Certificate; c != nil {
		pair, err := tls.X509KeyPair([]byte(c.Cert), []byte(c.Key))
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig.Certificates = []tls.Certificate{pair}
	}
	if t.forwarder != "" {
		transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: "forwarder"})
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", t.forwarder)
		}
	}
	return transport, nil
}

// post sends a request and decodes the answer.
func (s *session) post(ctx context.Context, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Endpoint+"/v1/"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "orlop")
	request.Header.Set("X-Vault-Request", "true")
	if s.Namespace != "" {
		request.Header.Set("X-Vault-Namespace", s.Namespace)
	}
	if s.token != "" {
		request.Header.Set("X-Vault-Token", s.token)
	}
	answer, err := s.http.Do(request)
	if err != nil {
		return errors.Unwrap(err) // without the URL, which the caller adds
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("the answer is incomplete: %w", err)
	case len(text) > maxAnswer:
		return fmt.Errorf("the answer has more than %d KiB", maxAnswer>>10)
	case answer.StatusCode != http.StatusOK:
		return refused(answer.StatusCode, text)
	case json.Unmarshal(text, out) != nil: // the error could contain a secret
		return errors.New("the answer is not JSON of the expected form")
	}
	return nil
}

// refused returns the error for an answer that is no success. The error lists the errors in text,
// the body of the answer.
func refused(status int, text []byte) error {
	var said struct{ Errors []string }
	if json.Unmarshal(text, &said) != nil || len(said.Errors) == 0 {
		return &refusal{status, http.StatusText(status)}
	}
	return &refusal{status, sanitize.ASCII(sanitize.Line(strings.Join(said.Errors, "\n")), 300)}
}

// explain adds the remedy to the error of a request with a token.
func (s *session) explain(err error, path string) error {
	var r *refusal
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &r):
		return s.unreachable(err)
	case r.status == http.StatusForbidden:
		return &problem{err, "the policy of the machine needs the capability update on " + path}
	case r.status == http.StatusNotFound, strings.Contains(r.text, "key not found"):
		return &problem{err, fmt.Sprintf("create the key %s of the secrets engine %s, or correct key, mount or namespace in Cluster.spec.kubernetes.apiServer.kms.transit", s.Key, s.Mount)}
	case strings.Contains(r.text, "too old"):
		return &problem{err, "lower min_decryption_version of the key until all Secrets are re-encrypted"}
	}
	return s.serverState(err, r)
}

// explainLogin adds the remedy to the error of a login.
func (s *session) explainLogin(err error) error {
	err = fmt.Errorf("cannot log in: %w", err)
	var r *refusal
	switch {
	case !errors.As(err, &r):
		return s.unreachable(err)
	case r.status == http.StatusBadRequest, r.status == http.StatusForbidden, r.status == http.StatusUnauthorized, r.status == http.StatusNotFound:
		field := "certificate"
		if s.AppRole != nil {
			field = "appRole"
		}
		return &problem{err, "correct Cluster.spec.kubernetes.apiServer.kms.transit." + field + ", or create its role on the server"}
	}
	return s.serverState(err, r)
}

// serverState adds the remedy to an answer of a server that cannot serve any client.
func (s *session) serverState(err error, r *refusal) error {
	switch {
	case r.status == http.StatusServiceUnavailable:
		return &problem{err, "unseal the server"}
	case r.status/100 == 3:
		return &problem{err, "the machine follows no redirect: let the server forward requests, or set endpoint to the active server"}
	}
	return &problem{err, "see the log of the server"}
}

// unreachable adds the remedy to an error of the connection.
func (s *session) unreachable(err error) error {
	var verify *tls.CertificateVerificationError
	switch {
	case errors.As(err, &verify):
		return &problem{err, "correct Cluster.spec.kubernetes.apiServer.kms.transit.ca or Machine.spec.egress.ca"}
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("no answer within %v", requestTimeout)
	}
	return &problem{err, "check that the server runs and that the machine reaches it (`orlopctl get routes`, Machine.spec.egress)"}
}
