package credentials

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
)

// Access configures authentication and authorization of the API server in addition to the fixed
// mechanisms: client certificates and service-account tokens for authentication, the Node
// authorizer and RBAC for authorization.
type Access struct {
	Authentication config.Authentication
	Authorization  config.Authorization
	Issuers        IssuerAccess
}

// IssuerAccess says how the API server reaches the issuers of tokens.
type IssuerAccess struct {
	Proxy bool // through the forwarder
	// CAs of the site, and the public CAs for issuers without a CA of their own, in PEM
	CAs, PublicCAs string
}

// NamedFile is a file in the directory of the API server.
type NamedFile struct {
	Name    string
	Content []byte
}

// Files returns the access configuration files of kube-apiserver; each file follows the files that
// it refers to. The server reloads changed configurations of authentication and authorization, but
// not changed kubeconfigs. Therefore a changed kubeconfig gets another file name. dir is the
// directory in which the server finds the files.
func (a Access) Files(dir string) []NamedFile {
	var files []NamedFile
	if w := a.tokenWebhook(); w != nil {
		files = append(files, *w)
	}
	var kubeconfigs []string
	for _, w := range a.Authorization.Webhooks {
		f := kubeconfig(authorizationPrefix+w.Name, w.URL, w.CA, w.Client)
		files = append(files, f)
		kubeconfigs = append(kubeconfigs, filepath.Join(dir, f.Name))
	}
	return append(files,
		NamedFile{nodespec.Authentication, text(authentication(a.Authentication, a.Issuers))},
		NamedFile{nodespec.Authorization, text(authorization(a.Authorization, kubeconfigs))})
}

// TokenWebhook returns the settings of the token webhook; nil without a webhook.
func (a Access) TokenWebhook() *nodespec.TokenWebhook {
	f := a.tokenWebhook()
	if f == nil {
		return nil
	}
	return &nodespec.TokenWebhook{Kubeconfig: f.Name, CacheTTL: time.Duration(a.Authentication.Webhook.CacheTTL).String()}
}

// Check returns the input of `orchestrator check-access`. This command rejects a configuration that
// the API server could not read. Without JWT issuers and authorization webhooks, Check returns nil,
// because pkg/config validates the rest completely.
func (a Access) Check(dnsDomain string) *nodespec.AccessCheck {
	if len(a.Authentication.JWT) == 0 && len(a.Authorization.Webhooks) == 0 {
		return nil
	}
	check := nodespec.AccessCheck{DNSDomain: dnsDomain}
	for _, f := range a.Files(paths.KubeAPI) {
		switch f.Name {
		case nodespec.Authentication:
			check.Authentication = string(f.Content)
		case nodespec.Authorization:
			check.Authorization = string(f.Content)
		}
	}
	return &check
}

// documentFields maps field names of the API server to field names of the Cluster document.
var documentFields = strings.NewReplacer(
	"jwt[", "authentication.jwt[", "webhooks[", "authorization.webhooks[",
	".issuer.url", ".url", ".issuer.discoveryURL", ".discoveryURL", ".issuer.certificateAuthority", ".ca", ".issuer.audiences", ".audiences",
	".claimMappings.username.expression", ".username", ".claimMappings.groups.expression", ".groups",
	".claimMappings.uid.expression", ".uid", ".claimMappings.extra", ".extra",
	".claimValidationRules", ".claimRules", ".userValidationRules", ".userRules",
)

// InDocument translates the output lines of `orchestrator check-access` into messages about the
// Cluster document.
func InDocument(lines string) string {
	var out []string
	for line := range strings.Lines(lines) {
		out = append(out, "Cluster.spec.kubernetes."+documentFields.Replace(strings.TrimSpace(line)))
	}
	return strings.Join(out, "; ")
}

func (a Access) tokenWebhook() *NamedFile {
	w := a.Authentication.Webhook
	if w == nil {
		return nil
	}
	f := kubeconfig(tokenPrefix+"webhook", w.URL, w.CA, w.Client)
	return &f
}

// Prefixes of the names of the webhooks' kubeconfigs.
const (
	tokenPrefix         = "token-"
	authorizationPrefix = "authorization-"
)

// object is a part of a Kubernetes document. Its fields are written in sorted order, so the same
// value gives the same text.
type object = map[string]any

func text(o object) []byte {
	content, err := yaml.Marshal(o)
	if err != nil {
		panic(err) // the value contains only strings, numbers, lists and maps
	}
	return content
}

const accessVersion = "apiserver.config.k8s.io/v1"

// authentication permits anonymous requests to the health endpoints only.
func authentication(a config.Authentication, access IssuerAccess) object {
	issuers := []object{}
	for _, j := range a.JWT {
		issuers = append(issuers, issuer(j, access))
	}
	return object{
		"apiVersion": accessVersion,
		"kind":       "AuthenticationConfiguration",
		"anonymous": object{
			"enabled":    true,
			"conditions": []object{{"path": "/livez"}, {"path": "/readyz"}, {"path": "/healthz"}},
		},
		"jwt": issuers,
	}
}

func issuer(j config.JWTIssuer, access IssuerAccess) object {
	where := object{"url": j.URL, "audiences": j.Audiences, "audienceMatchPolicy": "MatchAny"}
	if j.DiscoveryURL != "" {
		where["discoveryURL"] = j.DiscoveryURL
	}
	// Without the field, the API server trusts the public CAs.
	if cas := (pki.ServerCAs{Own: j.CA.PEM(), Site: access.CAs}).InFile(access.PublicCAs); cas != "" {
		where["certificateAuthority"] = cas
	}
	if access.Proxy {
		where["egressSelectorType"] = "controlplane"
	}
	mapped := object{"username": object{"expression": j.Username}}
	if j.Groups != "" {
		mapped["groups"] = object{"expression": j.Groups}
	}
	if j.UID != "" {
		mapped["uid"] = object{"expression": j.UID}
	}
	extra := []object{}
	for _, key := range slices.Sorted(maps.Keys(j.Extra)) {
		extra = append(extra, object{"key": key, "valueExpression": j.Extra[key]})
	}
	mapped["extra"] = extra
	return object{
		"issuer":               where,
		"claimValidationRules": rules(j.ClaimRules),
		"claimMappings":        mapped,
		"userValidationRules":  rules(j.UserRules),
	}
}

func rules(list []config.Rule) []object {
	out := []object{}
	for _, r := range list {
		out = append(out, object{"expression": r.Expression, "message": r.Message})
	}
	return out
}

// Users and groups of the cluster's own components. They include the add-ons, because an add-on may
// provide the webhook's service, and the API server as a client of kubelets, because kubelets
// authorize its calls through the API server.
var (
	ownUsers = []string{
		"system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy", "kube-apiserver-kubelet-client", "orlop:coredns",
		nodespec.MetricsUser, nodespec.AddonsUser,
	}
	ownGroups = []string{
		"system:nodes", nodespec.NodeAgentGroup, "system:serviceaccounts:kube-system", "system:serviceaccounts:" + nodespec.AddonsNamespace,
	}
)

// notClusterComponent is a condition that exempts the cluster's own components from authorization
// webhooks. Without the exemption, a webhook that is unavailable and then denies all requests would
// block the components that must restore its service.
var notClusterComponent = fmt.Sprintf("!(request.user in ['%s'] || request.groups.exists(g, g in ['%s']))", strings.Join(ownUsers, "', '"), strings.Join(ownGroups, "', '"))

// authorization returns the authorizers in the order of their evaluation; the first that has an
// opinion decides. kubeconfigs are the files of the webhooks, in the same order.
func authorization(a config.Authorization, kubeconfigs []string) object {
	authorizers := []object{{"type": "Node", "name": "node"}}
	for i, w := range a.Webhooks {
		conditions := []object{}
		for _, c := range append(slices.Clone(w.MatchConditions), notClusterComponent) {
			conditions = append(conditions, object{"expression": c})
		}
		authorizers = append(authorizers, object{"type": "Webhook", "name": w.Name, "webhook": object{
			"timeout":                    time.Duration(w.Timeout).String(),
			"authorizedTTL":              time.Duration(w.AuthorizedTTL).String(),
			"unauthorizedTTL":            time.Duration(w.UnauthorizedTTL).String(),
			"failurePolicy":              string(w.FailurePolicy),
			"subjectAccessReviewVersion": "v1",
			"matchConditionSubjectAccessReviewVersion": "v1",
			"matchConditions":                          conditions,
			"connectionInfo": object{
				"type":           "KubeConfigFile",
				"kubeConfigFile": kubeconfigs[i],
			},
		}})
	}
	return object{
		"apiVersion":  accessVersion,
		"kind":        "AuthorizationConfiguration",
		"authorizers": append(authorizers, object{"type": "RBAC", "name": "rbac"}),
	}
}

// kubeconfig returns the file with which the API server reaches a webhook.
func kubeconfig(prefix, url string, ca config.Bundle, client *config.CertKey) NamedFile {
	const name, user = "webhook", "kube-apiserver"
	base64 := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	credentials := object{}
	if client != nil {
		credentials["client-certificate-data"] = base64(client.Cert.PEM())
		credentials["client-key-data"] = base64(client.Key.PEM())
	}
	content := text(object{
		"apiVersion":      "v1",
		"kind":            "Config",
		"clusters":        []object{{"name": name, "cluster": object{"server": url, "certificate-authority-data": base64(ca.PEM())}}},
		"users":           []object{{"name": user, "user": credentials}},
		"contexts":        []object{{"name": name, "context": object{"cluster": name, "user": user}}},
		"current-context": name,
	})
	sum := sha256.Sum256(content)
	return NamedFile{fmt.Sprintf("%s-%x.yaml", prefix, sum[:8]), content}
}
