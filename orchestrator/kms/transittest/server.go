// Package transittest is a fake of Vault and OpenBao for tests. It answers the requests encrypt and
// decrypt of the secrets engine Transit, and the logins of the authentication methods AppRole and
// TLS certificates, as documented. Each version of a key is an AES-GCM key. The fake stores nothing
// on disk.
package transittest

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Server is the handler of the fake. Set the exported fields before its first request.
type Server struct {
	Namespace        string // expected in each request
	RoleID, SecretID string
	CertRole         string        // of a login with a certificate; empty: none
	TTL              time.Duration // the validity of tokens; 0 means unlimited
	Now              func() time.Time

	mu     sync.Mutex
	sealed bool
	denied bool
	keys   [][]byte // the versions of the key orlop; the last one encrypts
	tokens map[string]time.Time
	logins int
}

// New returns a fake with the key orlop of the secrets engine that is mounted as transit.
func New(roleID, secretID string) *Server {
	s := &Server{RoleID: roleID, SecretID: secretID, Now: time.Now, tokens: map[string]time.Time{}}
	s.Rotate()
	return s
}

// Rotate adds a version of the key.
func (s *Server) Rotate() {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = append(s.keys, key)
}

// Forget revokes all tokens.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.tokens)
}

// Seal makes all further requests fail if sealed is true, and work again if it is false.
func (s *Server) Seal(sealed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sealed = sealed
}

// Deny removes the rights of all tokens if denied is true, and restores them if it is false.
func (s *Server) Deny(denied bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denied = denied
}

// Logins returns the number of successful logins.
func (s *Server) Logins() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logins
}

// request has the fields of all requests.
type request struct {
	RoleID     string `json:"role_id"`
	SecretID   string `json:"secret_id"`
	Name       string `json:"name"`
	Plaintext  string `json:"plaintext"`
	Ciphertext string `json:"ciphertext"`
}

// failure is an answer other than success.
type failure struct {
	status int
	text   string
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer, failed := s.answer(r)
	status, body := http.StatusOK, any(answer)
	if failed != nil {
		status, body = failed.status, map[string]any{"errors": []string{failed.text}}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may have disconnected
}

func (s *Server) answer(r *http.Request) (map[string]any, *failure) {
	var q request
	switch {
	case s.sealed:
		return nil, &failure{http.StatusServiceUnavailable, "Vault is sealed"}
	case r.Method != http.MethodPost && r.Method != http.MethodPut:
		return nil, &failure{http.StatusMethodNotAllowed, "unsupported operation"}
	case r.Header.Get("X-Vault-Namespace") != s.Namespace:
		return nil, &failure{http.StatusNotFound, "no handler for route"}
	case json.NewDecoder(http.MaxBytesReader(nil, r.Body, 1<<20)).Decode(&q) != nil:
		return nil, &failure{http.StatusBadRequest, "failed to parse JSON input"}
	}
	switch r.URL.Path {
	case "/v1/auth/approle/login":
		if q.RoleID != s.RoleID || q.SecretID != s.SecretID {
			return nil, &failure{http.StatusBadRequest, "invalid role or secret ID"}
		}
		return s.login(), nil
	case "/v1/auth/cert/login":
		if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || s.CertRole == "" || q.Name != "" && q.Name != s.CertRole {
			return nil, &failure{http.StatusBadRequest, "invalid certificate or no client certificate supplied"}
		}
		return s.login(), nil
	}
	expiry, known := s.tokens[r.Header.Get("X-Vault-Token")]
	if !known || !expiry.IsZero() && s.Now().After(expiry) || s.denied {
		return nil, &failure{http.StatusForbidden, "permission denied"}
	}
	switch r.URL.Path {
	case "/v1/transit/encrypt/orlop":
		return s.encrypt(q.Plaintext)
	case "/v1/transit/decrypt/orlop":
		return s.decrypt(q.Ciphertext)
	}
	return nil, &failure{http.StatusBadRequest, "encryption key not found"}
}

func (s *Server) login() map[string]any {
	token := "hvs." + rand.Text()
	s.tokens[token] = time.Time{}
	if s.TTL > 0 {
		s.tokens[token] = s.Now().Add(s.TTL)
	}
	s.logins++
	return map[string]any{"auth": map[string]any{"client_token": token, "lease_duration": int(s.TTL / time.Second), "renewable": true}}
}

func (s *Server) encrypt(text string) (map[string]any, *failure) {
	plain, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, &failure{http.StatusBadRequest, "failed to base64-decode plaintext"}
	}
	nonce := make([]byte, 12)
	_, _ = rand.Read(nonce) // never fails
	version := len(s.keys)
	sealed := gcm(s.keys[version-1]).Seal(nonce, nonce, plain, nil)
	ciphertext := fmt.Sprintf("vault:v%d:%s", version, base64.StdEncoding.EncodeToString(sealed))
	return map[string]any{"data": map[string]any{"ciphertext": ciphertext, "key_version": version}}, nil
}

func (s *Server) decrypt(text string) (map[string]any, *failure) {
	invalid := &failure{http.StatusBadRequest, "invalid ciphertext: unable to decrypt"}
	parts := strings.SplitN(text, ":", 3)
	if len(parts) != 3 || parts[0] != "vault" {
		return nil, invalid
	}
	version, err := strconv.Atoi(strings.TrimPrefix(parts[1], "v"))
	if err != nil || version < 1 || version > len(s.keys) {
		return nil, invalid
	}
	sealed, err := base64.StdEncoding.DecodeString(parts[2])
	if err != nil || len(sealed) < 12 {
		return nil, invalid
	}
	plain, err := gcm(s.keys[version-1]).Open(nil, sealed[:12], sealed[12:], nil)
	if err != nil {
		return nil, invalid
	}
	return map[string]any{"data": map[string]any{"plaintext": base64.StdEncoding.EncodeToString(plain)}}, nil
}

// gcm returns the cipher of a key of 32 bytes.
func gcm(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // the key has another length
	}
	c, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return c
}
