// What our boards are, in the words of Grafana's own schema. `check.mjs` holds each board against `Board`.
import type { Dashboard, DataQuery, FieldConfig, FieldConfigSource, Panel, RowPanel } from '@grafana/schema';
import type * as heatmap from '@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as timeseries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

// JSON knows no enums: each is one of its values.
type Json<T> = T extends string
  ? `${T}`
  : T extends number | boolean | null | undefined
    ? T
    : T extends Array<infer Item>
      ? Json<Item>[]
      : T extends object
        ? { [Key in keyof T]: Json<T[Key]> }
        : T;

// The schema leaves these open (a data source's query, a panel's options): here they are closed.
interface PrometheusQuery extends DataQuery {
  expr: string;
  legendFormat: string;
  range: true;
  instant: false;
  format?: 'time_series' | 'heatmap';
  exemplar?: true;
}

type Closed<Name extends string, Options, Custom> = Omit<Panel, 'type' | 'options' | 'targets' | 'fieldConfig'> & {
  type: Name;
  title: string;
  description: string;
  options: Options;
  targets: PrometheusQuery[];
  fieldConfig: Omit<FieldConfigSource, 'defaults'> & {
    defaults: Omit<FieldConfig, 'custom'> & { unit: string; noValue: string; custom?: Custom };
  };
};

// The schema does not know this panel: these are the options that Grafana's documentation of it names.
type AlertList = Omit<Panel, 'type' | 'options' | 'targets' | 'fieldConfig'> & {
  type: 'alertlist';
  title: string;
  description: string;
  options: {
    alertInstanceLabelFilter: string;
    alertName: string;
    groupBy: string[];
    groupMode: 'default' | 'custom';
    maxItems: number;
    sortOrder: 1 | 2 | 3 | 4 | 5;
    stateFilter: { error: boolean; firing: boolean; noData: boolean; normal: boolean; pending: boolean };
    viewMode: 'list' | 'stat';
  };
};

// Nor what Prometheus's data source adds to an annotation.
type Marks = NonNullable<NonNullable<Dashboard['annotations']>['list']>[number] & {
  expr: string;
  step: string;
  titleFormat: string;
  textFormat: string;
  useValueForTime: boolean;
};

type AnyPanel =
  | Omit<RowPanel, 'type'> & { type: 'row' }
  | Closed<'timeseries', timeseries.Options, timeseries.FieldConfig>
  | Closed<'heatmap', heatmap.Options, heatmap.FieldConfig>
  | Closed<'stat', stat.Options, never>
  | AlertList;

export type Board = Json<
  Omit<Dashboard, 'panels' | 'annotations'> & { panels: AnyPanel[]; annotations: { list: Marks[] } }
>;
