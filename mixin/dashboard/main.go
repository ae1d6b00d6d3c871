// Dashboard writes the dashboard for Grafana: go run ./mixin/dashboard -o FILE
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

func main() {
	out := flag.String("o", "mixin/dashboard.json", "file to write")
	flag.Parse()
	if err := write(*out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(file string) error {
	d, err := build()
	if err != nil {
		return fmt.Errorf("build the dashboard: %w", err)
	}
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return fmt.Errorf("write the dashboard: %w", err)
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// build uses the first version of the schema, which every Grafana imports. The
// second takes one of the newest.
//
//lint:ignore SA1019 see above
func build() (dashboard.Dashboard, error) {
	//lint:ignore SA1019 see above
	b := dashboard.NewDashboardBuilder("headgate").
		Uid("headgate").
		Tags([]string{"headgate"}).
		Time("now-1h", "now").
		Refresh("10s").
		Tooltip(dashboard.DashboardCursorSyncCrosshair).
		Readonly().
		WithVariable(dashboard.NewDatasourceVariableBuilder("datasource").Label("data source").Type("prometheus"))
	for _, v := range []struct{ name, query string }{
		{"job", `label_values(headgate_build_info, job)`},
		{"instance", `label_values(headgate_build_info{job=~"$job"}, instance)`},
		{"rule", `label_values(headgate_limit` + at + `, rule)`},
		{"port", `label_values(headgate_limit{job=~"$job", instance=~"$instance", rule=~"$rule"}, port)`},
	} {
		b.WithVariable(dashboard.NewQueryVariableBuilder(v.name).
			Datasource(source()).
			Query(dashboard.StringOrMap{String: &v.query}).
			Refresh(dashboard.VariableRefreshOnTimeRangeChanged).
			Multi(true).IncludeAll(true).AllValue(".*").
			Current(dashboard.VariableOption{
				Text:  dashboard.StringOrArrayOfString{String: cog.ToPtr("All")},
				Value: dashboard.StringOrArrayOfString{String: cog.ToPtr("$__all")},
			}))
	}
	id := uint32(0)
	for _, r := range rows {
		id++
		b.WithRow(dashboard.NewRowBuilder(r.title).Id(id))
		for _, p := range r.panels {
			id++
			if p.big {
				b.WithPanel(number(id, p))
			} else {
				b.WithPanel(chart(id, p))
			}
		}
	}
	return b.Build()
}

// source is the data source that is chosen above.
func source() common.DataSourceRef {
	return common.DataSourceRef{Type: cog.ToPtr("prometheus"), Uid: cog.ToPtr("$datasource")}
}

func number(id uint32, p panel) cog.Builder[dashboard.Panel] {
	b := stat.NewPanelBuilder().
		Id(id).Title(p.title).Description(p.what).Datasource(source()).
		Unit(string(p.unit)).Span(p.width).Height(4).
		ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})).
		Orientation(common.VizOrientationAuto).
		GraphMode(common.BigValueGraphModeNone).ColorMode(common.BigValueColorModeNone)
	for i, q := range p.queries {
		b.WithTarget(ask(i, q))
	}
	return b
}

func chart(id uint32, p panel) cog.Builder[dashboard.Panel] {
	b := timeseries.NewPanelBuilder().
		Id(id).Title(p.title).Description(p.what).Datasource(source()).
		Unit(string(p.unit)).Span(p.width).Height(8).
		LineWidth(1.5).ShowPoints(common.VisibilityModeNever).
		Legend(common.NewVizLegendOptionsBuilder().
			DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom).ShowLegend(true)).
		Tooltip(common.NewVizTooltipOptionsBuilder().
			Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending))
	if p.title != "Drift" { // it has two sides
		b.Min(0)
	}
	if p.most > 0 {
		b.AxisSoftMax(p.most)
	}
	if p.stacked {
		b.FillOpacity(25).Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal))
	} else {
		b.FillOpacity(0)
	}
	for i, q := range p.queries {
		b.WithTarget(ask(i, q))
		if q.dashed {
			b.OverrideByQuery(ref(i), []dashboard.DynamicConfigValue{{
				Id:    "custom.lineStyle",
				Value: map[string]any{"fill": "dash", "dash": []int{8, 6}},
			}})
		}
	}
	return b
}

func ask(i int, q query) cog.Builder[variants.Dataquery] {
	return prometheus.NewDataqueryBuilder().
		RefId(ref(i)).Datasource(source()).Expr(q.expr).LegendFormat(q.legend).Range()
}

func ref(i int) string { return string(rune('A' + i)) }
