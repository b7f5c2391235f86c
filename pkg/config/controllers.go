package config

import (
	"time"

	"github.com/orlop-os/orlop/pkg/config/upstream"
)

// Scheduler configures the scheduler.
type Scheduler struct {
	Profiles []SchedulerProfile `yaml:"profiles,omitempty"`
}

// SchedulerProfile configures the scheduler for the pods that name the profile in schedulerName.
type SchedulerProfile struct {
	Name                     string             `yaml:"name" jsonschema:"required"`
	PercentageOfNodesToScore int                `yaml:"percentageOfNodesToScore" limits:"0 to 100"`
	Scoring                  Scoring            `yaml:"scoring"`
	Weights                  []ScoreWeight      `yaml:"weights,omitempty"`
	TopologySpread           []SpreadConstraint `yaml:"topologySpread,omitempty"`
}

// DefaultScheduler is the profile for pods that name no profile.
const DefaultScheduler = "default-scheduler"

func (p *SchedulerProfile) defaults() { p.Scoring.Strategy = LeastAllocated }

// Scoring configures how the scheduler scores nodes by their free resources (plugin
// NodeResourcesFit).
type Scoring struct {
	Strategy  ScoringStrategy  `yaml:"strategy"`
	Resources []ScoredResource `yaml:"resources,omitempty"`
	Shape     []ScoringPoint   `yaml:"shape,omitempty"`
}

// ScoringStrategy is a strategy of Scoring.
type ScoringStrategy string

// The strategies, with the names of Kubernetes.
const (
	LeastAllocated           ScoringStrategy = "LeastAllocated"
	MostAllocated            ScoringStrategy = "MostAllocated"
	RequestedToCapacityRatio ScoringStrategy = "RequestedToCapacityRatio"
)

// Names returns the strategies.
func (ScoringStrategy) Names() []string {
	return []string{string(LeastAllocated), string(MostAllocated), string(RequestedToCapacityRatio)}
}

// ScoredResource is a node resource that contributes to the score, with its weight.
type ScoredResource struct {
	Name   string `yaml:"name" jsonschema:"required"`
	Weight int    `yaml:"weight" limits:"1 to 100"`
}

func (r *ScoredResource) defaults() { r.Weight = 1 }

// ScoringPoint is a point of the function from the utilization of a node to its score.
type ScoringPoint struct {
	Utilization int `yaml:"utilization" limits:"0 to 100"`
	Score       int `yaml:"score" limits:"0 to 10"`
}

// ScoreWeight is the weight of a plugin that scores nodes.
type ScoreWeight struct {
	Plugin ScorePlugin `yaml:"plugin" jsonschema:"required"`
	Weight int         `yaml:"weight" limits:"0 to 100"`
}

// ScorePlugin is a plugin of the scheduler that scores nodes.
type ScorePlugin string

// Names returns the plugins.
func (ScorePlugin) Names() []string { return upstream.ScorePlugins() }

// SpreadConstraint spreads the pods of a controller or Service over groups of nodes with the same
// value of TopologyKey. It applies to pods without constraints of their own.
type SpreadConstraint struct {
	TopologyKey       string            `yaml:"topologyKey" jsonschema:"required"`
	MaxSkew           int               `yaml:"maxSkew" limits:"1 to 1000"`
	WhenUnsatisfiable WhenUnsatisfiable `yaml:"whenUnsatisfiable"`
}

func (c *SpreadConstraint) defaults() { c.MaxSkew, c.WhenUnsatisfiable = 1, ScheduleAnyway }

// WhenUnsatisfiable selects whether a pod is scheduled if no node satisfies the constraint.
type WhenUnsatisfiable string

// The values, with the names of Kubernetes.
const (
	DoNotSchedule  WhenUnsatisfiable = "DoNotSchedule"
	ScheduleAnyway WhenUnsatisfiable = "ScheduleAnyway"
)

// Names returns the values.
func (WhenUnsatisfiable) Names() []string {
	return []string{string(DoNotSchedule), string(ScheduleAnyway)}
}

// ControllerManager configures controllers of Kubernetes.
type ControllerManager struct {
	NodeMonitorGracePeriod Duration      `yaml:"nodeMonitorGracePeriod" limits:"whole seconds, 20s to 10m"`
	PodAutoscaler          PodAutoscaler `yaml:"podAutoscaler"`
}

// PodAutoscaler configures the controller for HorizontalPodAutoscalers.
type PodAutoscaler struct {
	SyncPeriod              Duration `yaml:"syncPeriod" limits:"whole seconds, 1s to 1h"`
	TolerancePercent        int      `yaml:"tolerancePercent" limits:"0 to 99"`
	DownscaleStabilization  Duration `yaml:"downscaleStabilization" limits:"whole seconds, 0s to 1h"`
	CPUInitializationPeriod Duration `yaml:"cpuInitializationPeriod" limits:"whole seconds, 0s to 1h"`
	InitialReadinessDelay   Duration `yaml:"initialReadinessDelay" limits:"whole seconds, 0s to 1h"`
}

func defaultControllerManager() ControllerManager {
	return ControllerManager{
		NodeMonitorGracePeriod: Duration(50 * time.Second),
		PodAutoscaler: PodAutoscaler{
			SyncPeriod: Duration(15 * time.Second), TolerancePercent: 10, DownscaleStabilization: Duration(5 * time.Minute),
			CPUInitializationPeriod: Duration(5 * time.Minute), InitialReadinessDelay: Duration(30 * time.Second),
		},
	}
}
