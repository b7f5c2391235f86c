package config

import (
	"time"

	"github.com/orlop-os/orlop/pkg/config/upstream"
)

// APIServer configures the API server.
type APIServer struct {
	ExtraSANs     []string        `yaml:"extraSANs,omitempty"`
	EventTTL      Duration        `yaml:"eventTTL" limits:"1m to 168h"`
	RuntimeConfig map[string]bool `yaml:"runtimeConfig,omitempty"`
	Requests      Requests        `yaml:"requests"`
	Admission     Admission       `yaml:"admission"`
	KMS           *KMS            `yaml:"kms,omitempty" json:"kms,omitempty"`
}

// Requests limits the requests that the API server serves at the same time.
type Requests struct {
	PriorityAndFairness bool `yaml:"priorityAndFairness"`
	MaxInFlight         int  `yaml:"maxInFlight" limits:"50 to 10000"`
	MaxMutatingInFlight int  `yaml:"maxMutatingInFlight" limits:"50 to 10000"`
}

// Admission enables, disables and configures admission plugins. A plugin with its own field, such
// as EventRateLimits, is enabled if the field is set.
type Admission struct {
	Enabled         []AdmissionPlugin `yaml:"enabled,omitempty"`
	Disabled        []AdmissionPlugin `yaml:"disabled,omitempty"`
	EventRateLimits []EventRateLimit  `yaml:"eventRateLimits,omitempty"`
	PodNodeSelector PodNodeSelector   `yaml:"podNodeSelector"`
	ResourceQuota   ResourceQuota     `yaml:"resourceQuota"`
}

// AdmissionPlugin is an admission plugin of Kubernetes.
type AdmissionPlugin string

// Names returns the plugins.
func (AdmissionPlugin) Names() []string { return upstream.Names(upstream.AdmissionPlugins()) }

// EventRateLimit limits the Events that the API server accepts (admission plugin EventRateLimit).
type EventRateLimit struct {
	Type      EventRateLimitType `yaml:"type" jsonschema:"required"`
	QPS       int                `yaml:"qps" jsonschema:"required" limits:"1 to 100000"`
	Burst     int                `yaml:"burst" jsonschema:"required" limits:"1 to 100000"`
	CacheSize int                `yaml:"cacheSize" limits:"1 to 100000"`
}

func (e *EventRateLimit) defaults() { e.CacheSize = 4096 }

// EventRateLimitType selects which Events share a limit.
type EventRateLimitType string

// The types, with the names of Kubernetes.
const (
	EventsOfServer    EventRateLimitType = "Server"
	EventsOfNamespace EventRateLimitType = "Namespace"
	EventsOfUser      EventRateLimitType = "User"
	EventsOfSource    EventRateLimitType = "SourceAndObject"
)

// Names returns the types.
func (EventRateLimitType) Names() []string {
	return []string{string(EventsOfNamespace), string(EventsOfServer), string(EventsOfSource), string(EventsOfUser)}
}

// PodNodeSelector adds node labels to the node selectors of pods, and limits which node labels pods
// can require (admission plugin PodNodeSelector).
type PodNodeSelector struct {
	Default map[string]string `yaml:"default,omitempty"`
	Allowed []NamespaceLabels `yaml:"allowed,omitempty"`
}

// NamespaceLabels are the labels of nodes that the pods of a namespace may require.
type NamespaceLabels struct {
	Namespace string            `yaml:"namespace" jsonschema:"required"`
	Labels    map[string]string `yaml:"labels" jsonschema:"required"`
}

// IsZero reports whether nothing is configured. The plugin is then disabled.
func (p PodNodeSelector) IsZero() bool { return len(p.Default)+len(p.Allowed) == 0 }

// ResourceQuota configures the admission plugin ResourceQuota.
type ResourceQuota struct {
	Limited []LimitedResource `yaml:"limited,omitempty"`
}

// LimitedResource is a resource that a namespace can use only with a quota for it.
type LimitedResource struct {
	APIGroup APIGroup `yaml:"apiGroup,omitempty"`
	Resource string   `yaml:"resource" jsonschema:"required"`
	Contains []string `yaml:"contains" jsonschema:"required"`
}

// Audit configures the audit log of the API server.
type Audit struct {
	MaxFileSize Bytes       `yaml:"maxFileSize" limits:"whole MiB, 1MiB to 1GiB"`
	MaxFiles    int         `yaml:"maxFiles" limits:"1 to 100"`
	Rules       []AuditRule `yaml:"rules,omitempty"`
}

// AuditRule is a rule of the audit policy (audit.k8s.io/v1).
type AuditRule struct {
	Level             AuditLevel      `yaml:"level" jsonschema:"required"`
	Users             []string        `yaml:"users,omitempty"`
	UserGroups        []string        `yaml:"userGroups,omitempty"`
	Verbs             []string        `yaml:"verbs,omitempty"`
	Resources         []AuditResource `yaml:"resources,omitempty"`
	Namespaces        []string        `yaml:"namespaces,omitempty"`
	NonResourceURLs   []string        `yaml:"nonResourceURLs,omitempty"`
	OmitStages        []AuditStage    `yaml:"omitStages,omitempty"`
	OmitManagedFields bool            `yaml:"omitManagedFields"`
}

// AuditResource selects resources of an API group.
type AuditResource struct {
	Group         APIGroup `yaml:"group,omitempty"`
	Resources     []string `yaml:"resources,omitempty"`
	ResourceNames []string `yaml:"resourceNames,omitempty"`
}

// AuditLevel is the amount of information that the audit log records about a request.
type AuditLevel string

// The levels, with the names of Kubernetes.
const (
	AuditNone            AuditLevel = "None"
	AuditMetadata        AuditLevel = "Metadata"
	AuditRequest         AuditLevel = "Request"
	AuditRequestResponse AuditLevel = "RequestResponse"
)

// Names returns the levels.
func (AuditLevel) Names() []string {
	return []string{string(AuditMetadata), string(AuditNone), string(AuditRequest), string(AuditRequestResponse)}
}

// AuditStage is a stage of a request at which the API server can write an audit event.
type AuditStage string

// The stages, with the names of Kubernetes. RequestReceived is never recorded.
const (
	AuditResponseStarted  AuditStage = "ResponseStarted"
	AuditResponseComplete AuditStage = "ResponseComplete"
	AuditPanic            AuditStage = "Panic"
)

// Names returns the stages.
func (AuditStage) Names() []string {
	return []string{string(AuditPanic), string(AuditResponseComplete), string(AuditResponseStarted)}
}

func defaultAPIServer() APIServer {
	return APIServer{EventTTL: Duration(time.Hour), Requests: Requests{PriorityAndFairness: true, MaxInFlight: 400, MaxMutatingInFlight: 200}}
}
