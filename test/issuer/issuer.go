// Package issuer is an issuer of OpenID Connect tokens for tests. It serves the discovery documents
// that an API server reads, and issues tokens.
package issuer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// keyID is the ID of the only key.
const keyID = "1"

// Issuer issues tokens that are signed with ECDSA on P-256 (ES256).
type Issuer struct {
	url string
	key *ecdsa.PrivateKey
}

// New returns an issuer with a new key. The parameter url is the address at which the caller serves
// Handler. It is an https URL without a path.
func New(url string) (*Issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("issuer: cannot make a key: %w", err)
	}
	return &Issuer{url, key}, nil
}

// Handler serves the discovery document (OpenID Connect Discovery 1.0, section 4) and the public
// key (RFC 7517).
func (i *Issuer) Handler() (http.Handler, error) {
	public, err := i.key.PublicKey.Bytes() // 0x04, x and y (SEC 1, section 2.3.3)
	if err != nil {
		return nil, fmt.Errorf("issuer: cannot encode its key: %w", err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	documents := map[string]any{
		"/.well-known/openid-configuration": map[string]any{
			"issuer": i.url, "jwks_uri": i.url + "/keys",
			"response_types_supported": []string{"id_token"}, "subject_types_supported": []string{"public"},
			"id_token_signing_alg_values_supported": []string{"ES256"},
		},
		"/keys": map[string]any{"keys": []map[string]string{{
			"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": keyID, "x": b64(public[1:33]), "y": b64(public[33:]),
		}}},
	}
	mux := http.NewServeMux()
	for path, document := range documents {
		text, err := json.Marshal(document)
		if err != nil {
			return nil, fmt.Errorf("issuer: cannot encode %s: %w", path, err)
		}
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(text) // fails only if the client has closed the connection
		})
	}
	return mux, nil
}

// Token returns a signed token with the claims iss, sub, aud, iat, exp and groups. The token is
// valid for an hour.
func (i *Issuer) Token(subject, audience string, groups ...string) (string, error) {
	token := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{
		"iss": i.url, "sub": subject, "aud": audience, "groups": groups,
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
	})
	token.Header["kid"] = keyID
	text, err := token.SignedString(i.key)
	if err != nil {
		return "", fmt.Errorf("issuer: cannot sign: %w", err)
	}
	return text, nil
}
